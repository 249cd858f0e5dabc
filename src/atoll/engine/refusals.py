"""What was refused of a capsule's network while something ran, in one line for its owner.

Clients inside say "403" or "Temporary failure in name resolution", which tells nobody that it was
a rule of the owner's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from atoll.engine import attempts, daemons
from atoll.engine.attempts import Attempt
from atoll.engine.session import Session
from atoll.model.errors import AtollError
from atoll.model.names import printable
from atoll.model.state import Capsule, Run

_MOST_SHOWN = 3
_MOST_RULES = 8


class Mark(NamedTuple):
    """How far the journal of a capsule's network was written at some time."""

    at: float
    inode: int
    size_bytes: int


def mark(capsule: Capsule) -> Mark:
    try:
        found = os.stat(Path(capsule.directory, attempts.JOURNAL))
    except OSError:
        return Mark(time.time(), 0, 0)
    return Mark(time.time(), found.st_ino, found.st_size)


def of_run(run: Run) -> Mark:
    """For all since a run was started, in the background; others may have run meanwhile."""
    return Mark(run.created_at, 0, 0)


def since(session: Session, capsule: Capsule, start: Mark) -> list[Attempt]:
    """The refusals since then, the oldest first. Costs one look at a file when there were none."""
    now = mark(capsule)
    if (now.inode, now.size_bytes) == (start.inode, start.size_bytes):
        return []
    if daemons.is_wanted(session):
        # Equal refusals are counted for a moment before their sum is written.
        with suppress(AtollError):
            daemons.ask(session, {"do": "journal", "capsule": capsule.id}, start=False)
    directory = Path(capsule.directory)
    found = attempts.read_since(directory, start.inode, start.size_bytes)
    return [attempt for attempt in found if not attempt.allowed and attempt.at >= start.at]


def rules_for(found: Iterable[Attempt]) -> list[str]:
    """The rules that would allow what was refused, each once, in their order."""
    return list(dict.fromkeys(attempt.ask for attempt in found if attempt.ask))[:_MOST_RULES]


def describe(capsule: Capsule, found: list[Attempt]) -> str | None:
    """One line, with the commands that show and allow it. None when nothing was refused."""
    refused = count(found)
    if refused is None:
        return None
    cure = allow_command(capsule.name, found)
    more = f", {cure}" if cure else ""
    return f"network: {refused}; atoll network {capsule.name} --refused{more}"


def count(found: list[Attempt]) -> str | None:
    """How many connections were refused, and to where. None when there were none."""
    number = sum(attempt.times for attempt in found)
    if not number:
        return None
    places = list(dict.fromkeys(attempt.place for attempt in found if attempt.place))
    shown = [printable(place) for place in places[:_MOST_SHOWN]]
    named = ", ".join([*shown, *(["\u2026"] if len(places) > _MOST_SHOWN else [])])
    return f"{number} {'connection' if number == 1 else 'connections'} refused ({named})"


def allow_command(whom: str, found: list[Attempt]) -> str | None:
    """What to type so that a capsule, or `--project`, may reach what was refused."""
    rules = rules_for(found)[:_MOST_SHOWN]
    return f"atoll allow {whom} {' '.join(rules)}" if rules else None
