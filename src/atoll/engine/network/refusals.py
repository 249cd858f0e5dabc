"""One line about the connections of a capsule that were refused during a run.

Clients inside report "403" or "Temporary failure in name resolution", which does not show that a
rule of the owner was the reason.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from atoll.engine.network import daemon_client, egress_log
from atoll.engine.network.egress_log import EgressAttempt
from atoll.engine.state.session import Session
from atoll.model.daemon_messages import DoneReply, JournalRequest
from atoll.model.errors import AtollError
from atoll.model.names import printable
from atoll.model.state import CapsuleRecord, Run

_MOST_SHOWN = 3
_MOST_RULES = 8


class Mark(NamedTuple):
    """A position in the egress log of a capsule."""

    at: float
    inode: int
    size_bytes: int


def mark(capsule: CapsuleRecord) -> Mark:
    try:
        found = os.stat(Path(capsule.directory, egress_log.JOURNAL))
    except OSError:
        return Mark(time.time(), 0, 0)
    return Mark(time.time(), found.st_ino, found.st_size)


def of_run(run: Run) -> Mark:
    """For all since a run was started, in the background; others may have run meanwhile."""
    return Mark(run.created_at, 0, 0)


def since(session: Session, capsule: CapsuleRecord, start: Mark) -> list[EgressAttempt]:
    """The refusals since then, the oldest first. Costs one `stat` when there were none."""
    now = mark(capsule)
    if (now.inode, now.size_bytes) == (start.inode, start.size_bytes):
        return []
    if daemon_client.is_wanted(session):
        # Equal refusals are counted for a moment before their sum is written.
        with suppress(AtollError):
            daemon_client.ask(session, JournalRequest(capsule.id), DoneReply, start=False)
    directory = Path(capsule.directory)
    found = egress_log.read_since(directory, start.inode, start.size_bytes)
    return [attempt for attempt in found if not attempt.allowed and attempt.at >= start.at]


def rules_for(found: Iterable[EgressAttempt]) -> list[str]:
    """The rules that would allow what was refused, each once, in their order."""
    return list(dict.fromkeys(attempt.ask for attempt in found if attempt.ask))[:_MOST_RULES]


def describe(capsule: CapsuleRecord, found: list[EgressAttempt]) -> str | None:
    """One line, with the commands that show and allow it. None when nothing was refused."""
    refused = count(found)
    if refused is None:
        return None
    cure = allow_command(capsule.name, found)
    more = f", {cure}" if cure else ""
    return f"network: {refused}; atoll network {capsule.name} --refused{more}"


def count(found: list[EgressAttempt]) -> str | None:
    """How many connections were refused, and to where. None when there were none."""
    number = sum(attempt.times for attempt in found)
    if not number:
        return None
    places = list(dict.fromkeys(attempt.place for attempt in found if attempt.place))
    shown = [printable(place) for place in places[:_MOST_SHOWN]]
    named = ", ".join([*shown, *(["\u2026"] if len(places) > _MOST_SHOWN else [])])
    return f"{number} {'connection' if number == 1 else 'connections'} refused ({named})"


def allow_command(whom: str, found: list[EgressAttempt]) -> str | None:
    """What to type so that a capsule, or `--project`, may reach what was refused."""
    rules = rules_for(found)[:_MOST_SHOWN]
    return f"atoll allow {whom} {' '.join(rules)}" if rules else None
