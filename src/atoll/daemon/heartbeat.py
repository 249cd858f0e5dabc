"""How the watcher knows that the worker's event loop still runs.

The worker counts in memory that both share, from a timer of its loop. The watcher compares the
count at regular intervals: a worker whose count stays the same for many intervals is stuck. Only
intervals count during which the watcher itself ran on time: on a machine that was suspended, or is
so busy that the watcher waits for a processor too, nothing is known about the worker.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import time
from contextlib import suppress

INTERVAL_S = 0.5
MISSED = 20
"""This many intervals without a beat mean that the loop is stuck."""
MISSED_AT_START = 120
"""The same before the first beat: the worker may be waiting for a disk."""
_LATE = 2.0
"""An interval that took this many times too long is ignored."""
_COUNT = struct.Struct("=Q")


class Heartbeat:
    """A counter that the processes of one worker and its watcher share; made before the fork."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    @property
    def count(self) -> int:
        number: int = _COUNT.unpack_from(self._memory)[0]
        return number

    def beat(self) -> None:
        _COUNT.pack_into(self._memory, 0, self.count + 1)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Beats as long as the loop runs."""
        self.beat()
        loop.call_later(INTERVAL_S, self.start, loop)

    def close(self) -> None:
        self._memory.close()


class Pulse:
    """The watcher's side: counts the intervals without a beat."""

    def __init__(self, heartbeat: Heartbeat, *, most: int = MISSED) -> None:
        self._heartbeat = heartbeat
        self._most = most
        self._seen = 0
        self._missed = 0
        self._looked_at_s = self._now_s()

    def is_lost(self, *, is_held: bool = False) -> bool:
        """Call it once per `INTERVAL_S`. With `is_held` the worker cannot beat for a reason that
        is none of its own, and the interval does not count.
        """
        now_s = self._now_s()
        is_late = now_s - self._looked_at_s > INTERVAL_S * _LATE
        self._looked_at_s = now_s
        if (count := self._heartbeat.count) != self._seen:
            self._seen, self._missed = count, 0
        elif is_held:
            self._missed = 0
        elif not is_late:
            self._missed += 1
        return self._missed >= (self._most if self._seen else max(self._most, MISSED_AT_START))

    def _now_s(self) -> float:
        # Does not advance while the machine is suspended.
        return time.monotonic()


def is_traced(pid: int) -> bool:
    """Whether a debugger holds a process."""
    with suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("TracerPid:"):
                return int(line.split()[1]) != 0
    return False
