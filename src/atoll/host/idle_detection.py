"""Detects programs in a capsule that wait for input that never comes.

A process inside can make any tool wait: with a fifo in place of a file, or with a filter that
sleeps. Activity is CPU time, a process that is runnable or waits for a disk, or a new process.
"""

from __future__ import annotations

import time

from atoll.keeper import process_tree
from atoll.model.errors import Unanswered

LOOK_S = 0.5
STILL_S = 3.0
_BUSY = "RD"


class IdleTimer:
    """The idleness of a process and its descendants, from now on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: object = None
        self._since = time.monotonic()

    def require_work(self, program: str) -> None:
        """Raises Unanswered if `program` and its descendants have been idle for too long."""
        if self.lasts():
            raise Unanswered(
                f"`{program}` has been idle for {STILL_S:g} s inside the capsule: it waits for "
                "input that does not come, such as a fifo in place of a file",
                hint="find . ~ -type p, inside the capsule",
            )

    def lasts(self) -> bool:
        """Whether nothing has been active for `STILL_S`, judging by the samples taken."""
        now = time.monotonic()
        # Includes the first process: it builds the sandbox before it starts anything, which may
        # take long on a busy machine.
        first = process_tree.find_process(self._pid)
        found = [*([] if first is None else [first]), *process_tree.processes_under(self._pid)]
        seen = {process.identity: (process.own_ticks, _schedstat(process.pid)) for process in found}
        if seen != self._seen or any(process.state in _BUSY for process in found):
            self._seen, self._since = seen, now
        return now - self._since >= STILL_S


def _schedstat(pid: int) -> bytes:
    """CPU time of the first thread in nanoseconds, if the kernel counts it."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as stream:
            return stream.read()
    except OSError:
        return b""
