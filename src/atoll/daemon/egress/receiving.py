"""Connections that come out of a capsule, each served on its own, and never too many of them."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable

from atoll.daemon.egress.shares import Share
from atoll.daemon.egress.streams import Stream
from atoll.daemon.setbacks import SCARCE

_BREATH_S = 0.1
_PASSING = {
    *SCARCE,
    errno.ECONNABORTED,
    errno.EPROTO,
    errno.EPERM,
}
"""What may go wrong with one connection, or for a while."""

Service = Callable[[Stream], Awaitable[None]]


class Reception:
    """Connections of one capsule. Beyond its share, new ones are closed at once: others may still
    be served.
    """

    def __init__(self, share: Share, *, when_full: Callable[[], None]) -> None:
        self._share = share
        self._when_full = when_full
        self._alive: set[asyncio.Task[None]] = set()

    async def receive(self, door: socket.socket, service: Service) -> None:
        """Until cancelled. OSError when the door itself is broken."""
        loop = asyncio.get_running_loop()
        while True:
            await self._share.turns.wait()
            try:
                sock, _ = await loop.sock_accept(door)
            except OSError as error:
                if error.errno not in _PASSING:
                    raise
                await asyncio.sleep(_BREATH_S)
                continue
            if self._share.is_full:
                sock.close()
                self._when_full()
            else:
                self._begin(sock, service)
            # A flood of connections is served one by one, and everybody else in between.
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Ends all connections."""
        for task in self._alive:
            task.cancel()
        if self._alive:
            await asyncio.wait(self._alive)

    def _begin(self, sock: socket.socket, service: Service) -> None:
        task = asyncio.create_task(_serve(sock, service))
        self._alive.add(task)
        self._share.enter()
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._alive.discard(task)
        self._share.leave()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # A mistake of ours ends one connection, and is told to whoever keeps the log.
            told = {"message": "a connection failed", "exception": error, "task": task}
            asyncio.get_running_loop().call_exception_handler(told)


async def _serve(sock: socket.socket, service: Service) -> None:
    client = Stream(sock)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await service(client)
        await client.finish()
    except OSError:
        # It broke off, or took too long; nobody is there to be told.
        pass
    finally:
        sock.close()
