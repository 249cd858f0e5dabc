"""Rates: token buckets, and a pace that delays instead of refusing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

Clock = Callable[[], float]


class TokenBucket:
    """Holds up to `capacity` tokens, and gains `per_s` of them each second. Starts full."""

    def __init__(self, capacity: float, per_s: float, clock: Clock = time.monotonic) -> None:
        self._capacity = capacity
        self._per_s = per_s
        self._clock = clock
        self._level = capacity
        self._at = clock()

    @property
    def level(self) -> float:
        """The tokens that are left; negative after `reserve` has lent some."""
        now = self._clock()
        self._level = min(self._capacity, self._level + (now - self._at) * self._per_s)
        self._at = now
        return self._level

    def take(self, count: float = 1) -> bool:
        """Takes `count` tokens, or none and returns False when there are not so many."""
        if self.level < count:
            return False
        self._level -= count
        return True

    def reserve(self, count: float = 1) -> float:
        """Takes `count` tokens in any case, and returns how many seconds to wait for them."""
        self._level = self.level - count
        return max(0.0, -self._level / self._per_s)


class Pace:
    """Delays work to a steady rate once a burst is used up.

    Nobody is turned away here, so the callers bound how many wait at the same time.
    """

    def __init__(self, burst: float, per_s: float) -> None:
        self._bucket = TokenBucket(burst, per_s)

    async def wait(self) -> None:
        """Returns when it is the caller's turn."""
        delay_s = self._bucket.reserve()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
