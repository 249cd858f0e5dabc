"""An event loop in which each capsule has a share of the processor time.

The loop of asyncio runs callbacks in the order in which they became ready, so a capsule with a
thousand busy connections delays every other capsule by a thousand callbacks. This loop keeps one
queue per share, and always continues with the share that has used the least time so far: a capsule
that was idle waits for at most one callback of its neighbours.

A callback belongs to the share of the context that it was made in. Tasks, readers, writers and
timers inherit it from the task that creates them, so it is enough to call `enter_share` once in
the task that serves a capsule.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import ContextVar
from time import thread_time
from typing import Protocol

from atoll.daemon.selector import ScarceSelector

_ROUND = 8
"""Callbacks between two questions to the kernel: what became ready meanwhile must not wait long."""


class _Queued(Protocol):
    """The part of `asyncio.Handle` that is used here."""

    @property
    def _context(self) -> _Context: ...


class _Context(Protocol):
    def get(self, var: ContextVar[LoopShare], default: LoopShare, /) -> LoopShare: ...


class LoopShare:
    """What one capsule has used of the loop, and which of its callbacks are ready.

    Time is processor time, so that a capsule does not pay for moments in which the daemon itself
    had to wait for a processor. It is only measured while several shares have something to do.
    """

    __slots__ = ("ready", "used_s")

    def __init__(self) -> None:
        self.used_s = 0.0
        self.ready: deque[_Queued] = deque()


_SHARE: ContextVar[LoopShare] = ContextVar("share")


def enter_share(share: LoopShare) -> None:
    """Everything that the current task does or creates from now on belongs to `share`."""
    _SHARE.set(share)


class FairQueue:
    """Takes the place of the loop's queue of ready callbacks, a `collections.deque`.

    The loop asks for the length before each round and then takes that many. Other threads may
    append, which is why `append` is the one of a deque and sorting happens later in the loop.
    """

    def __init__(self) -> None:
        self._incoming: deque[_Queued] = deque()
        self.append = self._incoming.append
        self._queued: set[int] = set()
        """Identities of the callbacks in the queues. The kernel reports a descriptor again in
        each round until it was read, but its callback must not be queued more than once."""
        self._own = LoopShare()
        """For callbacks of no capsule."""
        self._active: set[LoopShare] = set()
        self._running: LoopShare | None = None
        self._began_s = 0.0
        self._floor_s = 0.0
        """The time used by the share that ran last: an idle share starts there, so that it cannot
        accumulate time."""

    def __len__(self) -> int:
        if self._running is not None:
            self._charge(thread_time())
        if self._incoming:
            self._sort()
        return min(len(self._queued), _ROUND)

    def popleft(self) -> _Queued:
        """The next callback of the share that has used the least."""
        active = self._active
        if len(active) == 1:
            if self._running is not None:
                self._charge(thread_time())
            (share,) = active
        else:
            now_s = thread_time()
            if self._running is not None:
                self._charge(now_s)
            share = min(active, key=_used)
            self._running, self._began_s = share, now_s
        self._floor_s = share.used_s
        handle = share.ready.popleft()
        if not share.ready:
            active.discard(share)
        self._queued.discard(id(handle))
        return handle

    def clear(self) -> None:
        self._incoming.clear()
        self._queued.clear()
        for share in self._active:
            share.ready.clear()
        self._active.clear()

    def _charge(self, now_s: float) -> None:
        if self._running is not None:
            self._running.used_s += now_s - self._began_s
            self._running = None

    def _sort(self) -> None:
        """Moves what was appended into the queues of the shares; runs for every callback."""
        incoming, queued, active = self._incoming, self._queued, self._active
        own, floor_s = self._own, self._floor_s
        while incoming:
            handle = incoming.popleft()
            key = id(handle)
            if key in queued:
                continue
            queued.add(key)
            share = handle._context.get(_SHARE, own)  # noqa: SLF001 - public only since 3.12
            if not share.ready:
                active.add(share)
                share.used_s = max(share.used_s, floor_s)
            share.ready.append(handle)


def _used(share: LoopShare) -> float:
    return share.used_s


class FairLoop(asyncio.SelectorEventLoop):
    """The loop of asyncio with a `FairQueue`, where asyncio has such a queue. It continues when the
    user has no epoll watches left, see `ScarceSelector`.
    """

    def __init__(self) -> None:
        super().__init__(ScarceSelector())
        if isinstance(getattr(self, "_ready", None), deque):
            self._ready = FairQueue()
