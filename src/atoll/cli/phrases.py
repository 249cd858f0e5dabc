"""Renders model values as text."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

from atoll.cli.tables import cut
from atoll.model.names import printable
from atoll.model.state import Outcome, Reason, RecoveryPoint, Run, RunState
from atoll.model.units import render_size

if TYPE_CHECKING:
    from atoll.engine.capsule.disk_use import DiskUse


def age(since: float) -> str:
    return span(time.time() - since)


def until(end: float) -> str:
    return "in " + span(end - time.time())


def span(took_s: float) -> str:
    seconds = max(0, int(took_s))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def disk(used: DiskUse) -> str:
    return render_size(used.bytes) + ("" if used.is_complete else " or more")


def moment(stamp: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stamp))


def command(argv: tuple[str, ...], *, width: int = 60) -> str:
    return cut(printable(shlex.join(argv)), width)


def ending(outcome: Outcome) -> str:
    match outcome.reason:
        case Reason.EXITED | Reason.NOT_STARTED:
            return f"{outcome.reason}({outcome.exit_code})"
        case Reason.SIGNALLED:
            return f"signalled({outcome.signal})"
        case _:
            return str(outcome.reason)


def state_of(run: Run) -> str:
    if run.state is RunState.ENDED and run.outcome is not None:
        return ending(run.outcome)
    return str(run.state)


def stored(point: RecoveryPoint) -> str:
    """What a removal stored, where, and the command that restores it."""
    name = point.capsule
    if point.lacks:
        has_commits = point.head_commit != point.base_commit
        what = (
            f"the commits of `{name}`, and its files" if has_commits else f"the files of `{name}`"
        )
        head = f"stored {what} in {point.files}: {point.lacks}"
    elif point.files is not None:
        head = f"stored the work of `{name}`; files that git cannot store are in {point.files}"
    else:
        head = f"stored the work of `{name}`"
    gone = " --gone" if point.repository else ""
    return f"{head}\nhint: atoll recover{gone} {point.id}"
