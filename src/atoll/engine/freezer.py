"""Holds the processes of a capsule still for a moment, without their noticing.

Parents are stopped before their children and go on after them, so that no shell sees a job stop.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from atoll.engine import runs
from atoll.engine.session import Session
from atoll.host.process import wait_until
from atoll.model.errors import DriverError
from atoll.model.state import Capsule

_ROUNDS = 50
_STOPPED_S = 5.0


@contextmanager
def frozen(session: Session, capsule: Capsule) -> Iterator[None]:
    """All processes of all runs are stopped meanwhile. Raises DriverError when some resist."""
    stopped: list[int] = []
    try:
        for _ in range(_ROUNDS):
            # Whoever forked before it was stopped has a child that still runs.
            fresh = [pid for pid in _members(session, capsule) if pid not in stopped]
            if not fresh:
                break
            stopped += fresh
            # Known before it is done: else a kill in between would leave them stopped for good.
            session.nursery.thaw_if_killed(str(capsule.id), stopped)
            for pid in fresh:
                _signal(pid, signal.SIGSTOP)
            wait_until(partial(_are_still, fresh), timeout_s=_STOPPED_S)
        else:
            raise DriverError(f"`{capsule.name}` starts processes faster than they can be frozen")
        yield
    finally:
        for pid in reversed(stopped):
            _signal(pid, signal.SIGCONT)
        if stopped:
            session.nursery.thaw_if_killed(str(capsule.id), ())


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
