"""The daemon's memory: what a burst of connections needed is returned to the system after it."""

from __future__ import annotations

import asyncio
import gc
import mmap
from contextlib import suppress

from atoll.host import kernel

_CHECK_S = 5.0
_GROWN_BYTES = 4 << 20
"""Collecting garbage stops the loop for some milliseconds: less than this is not worth it."""
_MOST_CHECKS = 12


class MemoryTrimmer:
    """Trims while the process is larger than after its start; more rarely if all is in use."""

    def __init__(self) -> None:
        # Current objects are permanent, and need not be scanned each time.
        gc.collect()
        gc.freeze()
        kernel.release_free_memory()
        self._enough_bytes = _GROWN_BYTES
        with suppress(OSError):
            self._enough_bytes += resident_bytes()
        self._checks_between = 1
        self._checks_left = 1

    async def serve(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_S)
            # No descriptor or memory may be left: retried at the next check.
            with suppress(OSError):
                self.trim_if_grown()

    def trim_if_grown(self) -> bool:
        """Returns whether it trimmed."""
        before = resident_bytes()
        if before <= self._enough_bytes:
            self._checks_between = self._checks_left = 1
            return False
        self._checks_left -= 1
        if self._checks_left > 0:
            return False
        gc.collect()
        kernel.release_free_memory()
        has_helped = resident_bytes() < before - _GROWN_BYTES
        self._checks_between = 1 if has_helped else min(2 * self._checks_between, _MOST_CHECKS)
        self._checks_left = self._checks_between
        return True


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * mmap.PAGESIZE
