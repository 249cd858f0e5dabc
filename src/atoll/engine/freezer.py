"""Holds the processes of a capsule still for a moment, without their noticing.

Parents are stopped before their children and go on after them, so that no shell sees a job stop.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from atoll.engine import runs
from atoll.engine.session import Session
from atoll.host.process import wait_until
from atoll.model.errors import DriverError, StateError
from atoll.model.state import Capsule

_ROUNDS = 50
_STOPPED_S = 5.0


PAUSED = "paused"
"""A file in the capsule's directory, for as long as it is."""


def is_paused(capsule: Capsule) -> bool:
    return Path(capsule.directory, PAUSED).exists()


def require_running(capsule: Capsule) -> None:
    if is_paused(capsule):
        raise StateError(f"`{capsule.name}` is paused", hint=f"atoll resume {capsule.name}")


def pause(session: Session, capsule: Capsule) -> int:
    """Stops all processes of all runs until `resume`; returns how many. Fine when they are."""
    # First: from now on nothing new is started.
    Path(capsule.directory, PAUSED).touch(mode=0o600)
    return len(_stop_all(session, capsule, lambda _: None))


def resume(session: Session, capsule: Capsule) -> int:
    members = _members(session, capsule)
    for pid in reversed(members):
        _signal(pid, signal.SIGCONT)
    Path(capsule.directory, PAUSED).unlink(missing_ok=True)
    return len(members)


@contextmanager
def frozen(session: Session, capsule: Capsule) -> Iterator[None]:
    """All processes of all runs are stopped meanwhile. Raises DriverError when some resist."""
    if is_paused(capsule):
        yield
        return
    stopped: list[int] = []

    def note(pids: list[int]) -> None:
        # Known before it is done: else a kill in between would leave them stopped for good.
        stopped[:] = pids
        session.nursery.thaw_if_killed(str(capsule.id), stopped)

    try:
        _stop_all(session, capsule, note)
        yield
    finally:
        for pid in reversed(stopped):
            _signal(pid, signal.SIGCONT)
        if stopped:
            session.nursery.thaw_if_killed(str(capsule.id), ())


def _stop_all(session: Session, capsule: Capsule, note: Callable[[list[int]], None]) -> list[int]:
    stopped: list[int] = []
    for _ in range(_ROUNDS):
        # Whoever forked before it was stopped has a child that still runs.
        fresh = [pid for pid in _members(session, capsule) if pid not in stopped]
        if not fresh:
            return stopped
        stopped += fresh
        note(stopped)
        for pid in fresh:
            _signal(pid, signal.SIGSTOP)
        wait_until(partial(_are_still, fresh), timeout_s=_STOPPED_S)
    raise DriverError(f"`{capsule.name}` starts processes faster than they can be frozen")


def _members(session: Session, capsule: Capsule) -> list[int]:
    """Process ids, parents first."""
    return [
        process.pid
        for run in session.store.runs(capsule)
        for process in runs.processes(session, run)
    ]


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _are_still(pids: list[int]) -> bool:
    return all(_is_still(pid) for pid in pids)


def _is_still(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            return stream.read().rpartition(b")")[2].split()[0] in (b"T", b"t", b"Z", b"X")
    except OSError:
        return True
