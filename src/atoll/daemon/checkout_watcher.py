"""Watches the checkouts of projects in use, and freezes them in the background after changes.

What is frozen ahead of time need not be frozen while a command waits. It is done by one process at
a time, of the lowest priority, when a checkout has been quiet for a moment, and not when the disk
is nearly full.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from collections.abc import Collection
from contextlib import suppress

from atoll.engine.history import checkout_watch
from atoll.engine.state.session import Session
from atoll.host.process import Companion, launch
from atoll.host.programs import own_environment, python_command
from atoll.host.tree.tree_watch import TreeWatch, WatchLost, watch_limit
from atoll.model.daemon_messages import ChangesReply, ChangesRequest
from atoll.model.errors import AtollError

_CHECK_S = 1.0
_QUIET_S = 3.0
"""A checkout is frozen after this time without changes."""
_USED_S = 1800.0
"""How long a project is watched after its last use."""
_RETRY_S = 30.0
_REST = 10
"""After a freeze, the next one of the same project waits for this many times its duration."""
_MOST_PROJECTS = 8
_REPLY_BYTES = 64 << 10
_LONGEST_S = 1800.0


class _Checkout:
    """One project's checkout."""

    def __init__(self, project: str, root: str) -> None:
        self.project = project
        self.root = root
        self.turn = asyncio.Lock()
        self.watch: TreeWatch | None = None
        self.name = ""
        """The id of the watch."""
        self.watch_at = 0.0
        """When it may next be started: soon if it worked before, because a moved directory ends it.
        """
        self.freeze_at = 0.0
        """When it may next be frozen."""
        self.changed_at = 0.0
        self.is_stale = True

    def start(self, limit: int, skipped: tuple[str, ...]) -> None:
        """Raises WatchLost."""
        began = time.monotonic()
        self.watch_at = began + _RETRY_S
        self.watch = TreeWatch(self.root, limit=limit, skipped=skipped)
        ended = time.monotonic()
        self.watch_at = ended + _REST * (ended - began)
        self.name = os.urandom(8).hex()
        # What changed before is unknown.
        self.is_stale = True

    def stop(self) -> None:
        if self.watch is not None:
            self.watch.close()
        self.watch = None


class CheckoutWatcher:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._checkouts: dict[str, _Checkout] = {}
        self._is_freezing = False

    @property
    def is_needed(self) -> bool:
        return bool(self._checkouts)

    @property
    def is_freezing(self) -> bool:
        return self._is_freezing

    def watched(self) -> dict[str, int]:
        """How many directories are watched, by project."""
        return {
            one.project: 0 if one.watch is None else len(one.watch)
            for one in self._checkouts.values()
        }

    async def serve(self) -> None:
        freezing: asyncio.Task[None] | None = None
        try:
            while True:
                await asyncio.to_thread(self._choose)
                for one in list(self._checkouts.values()):
                    await self._check(one)
                if freezing is None or freezing.done():
                    due = next(filter(_is_due, self._checkouts.values()), None)
                    freezing = None if due is None else asyncio.create_task(self._freeze(due))
                await asyncio.sleep(_CHECK_S)
        finally:
            if freezing is not None:
                freezing.cancel()
                with suppress(asyncio.CancelledError):
                    await freezing
            for one in self._checkouts.values():
                one.stop()

    def _choose(self) -> None:
        """The projects that were used last, as long as that is not long ago."""
        noted = checkout_watch.noted(self._session.home)
        if not noted and not self._checkouts:
            return
        since = time.time() - _USED_S
        recent = sorted((n for n, at in noted.items() if at > since), key=lambda n: -noted[n])
        chosen = set(recent[:_MOST_PROJECTS])
        roots = {}
        if chosen:
            with suppress(AtollError):
                roots = {p.id: p.root for p in self._session.store.projects() if p.id in chosen}
        for project, one in list(self._checkouts.items()):
            if roots.get(project) != one.root or not os.path.isdir(one.root):
                one.stop()
                del self._checkouts[project]
        for project, root in roots.items():
            if project not in self._checkouts and os.path.isdir(root):
                self._checkouts[project] = _Checkout(project, root)

    async def _check(self, one: _Checkout) -> None:
        async with one.turn:
            try:
                await self._start(one)
                if one.watch is None or not select.select([one.watch.fd], [], [], 0)[0]:
                    return
                has_changed = await asyncio.to_thread(one.watch.drain)
            except WatchLost:
                one.stop()
                has_changed = True
            if has_changed:
                one.changed_at = time.monotonic()
                one.is_stale = True

    async def _start(self, one: _Checkout) -> None:
        """Watches a checkout, unless that is done or was tried a moment ago; raises WatchLost."""
        if one.watch is None and time.monotonic() >= one.watch_at:
            used = sum(len(c.watch) for c in self._checkouts.values() if c.watch)
            home = (str(self._session.home),)
            await asyncio.to_thread(one.start, watch_limit() - used, home)

    async def changes(self, request: ChangesRequest) -> ChangesReply:
        one = self._checkouts.get(request.project)
        if one is None or one.root != request.root:
            return ChangesReply()
        async with one.turn:
            # A watch that is lost is followed by the next one at once: what is walked after this
            # answer is then covered by it.
            for _ in range(2):
                with suppress(WatchLost):
                    await self._start(one)
                if one.watch is None:
                    break
                try:
                    return await asyncio.to_thread(_answer, one, one.watch, request)
                except WatchLost:
                    one.stop()
                    one.is_stale = True
            return ChangesReply()

    async def _freeze(self, one: _Checkout) -> None:
        self._is_freezing = True
        one.is_stale = False
        began = time.monotonic()
        child: Companion | None = None
        arguments = (str(self._session.home), one.root, str(os.getpid()))
        argv = python_command("atoll.daemon.background_freeze", *arguments)
        try:
            # In the loop's own thread: the child ends with the thread that started it.
            child = launch(argv, keep_fds=(), env=own_environment())
            while child.poll() is None and time.monotonic() < began + _LONGEST_S:  # noqa: ASYNC110
                await asyncio.sleep(_CHECK_S / 4)
        except (AtollError, OSError):
            # It is tried again after the next change.
            return
        finally:
            if child is not None:
                _end(child)
            self._is_freezing = False
            ended = time.monotonic()
            one.freeze_at = ended + _REST * (ended - began)


def _answer(one: _Checkout, watch: TreeWatch, request: ChangesRequest) -> ChangesReply:
    """What has changed since the position of the request, if that is one of this watch."""
    found = watch.changes(request.position if request.watch == one.name else -1)
    return ChangesReply(one.name, found.position, _listed(found.paths))


def _listed(paths: Collection[str] | None) -> tuple[str, ...] | None:
    """None when the list is too long for one message."""
    is_long = paths is None or sum(map(len, paths)) * 6 > _REPLY_BYTES
    return None if paths is None or is_long else tuple(paths)


def _is_due(one: _Checkout) -> bool:
    now = time.monotonic()
    return one.is_stale and now >= max(one.changed_at + _QUIET_S, one.freeze_at)


def _end(child: Companion) -> None:
    """Ends the child and the programs that it has started, which are in its group."""
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()
