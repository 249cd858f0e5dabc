"""Whether a program inside of a capsule does anything, or waits for what nobody will give.

Whoever is inside can make any tool wait: by a pipe in the place of a file that it reads, by a
filter that sleeps. Work shows: in processor time, in a process that can run or waits for a disk,
in a process that was not there before.
"""

from __future__ import annotations

import time

from atoll.keeper import tree
from atoll.model.errors import Unanswered

LOOK_S = 0.5
STILL_S = 3.0
_BUSY = "RD"
_UTIME, _STIME = 11, 12


class Stillness:
    """Of a process and of what runs below it, from now on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: object = None
        self._since = time.monotonic()

    def require_work(self, program: str) -> None:
        """Raises Unanswered when `program` and what it has started have done nothing for long."""
        if self.lasts():
            raise Unanswered(
                f"`{program}` has done nothing for {STILL_S:g} s inside of the capsule: it waits "
                "for something that does not come, such as a pipe in the place of a file",
                hint="find . ~ -type p, inside of the capsule",
            )

    def lasts(self) -> bool:
        """Whether nothing has moved for `STILL_S`, as far as it was looked at meanwhile."""
        now = time.monotonic()
        # The first one, too: before it has started anything it builds walls, which may take long
        # on a busy machine.
        first = tree.find_process(self._pid)
        found = [*([] if first is None else [first]), *tree.processes_under(self._pid)]
        seen = {process.identity: _used(process.pid) for process in found}
        if seen != self._seen or any(process.state in _BUSY for process in found):
            self._seen, self._since = seen, now
        return now - self._since >= STILL_S


def _used(pid: int) -> tuple[bytes, ...]:
    """Of all threads in ticks, and of the first one in nanoseconds where the kernel counts them."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return (*fields[_UTIME : _STIME + 1], _read(pid, "schedstat"))


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as stream:
            return stream.read()
    except OSError:
        return b""
