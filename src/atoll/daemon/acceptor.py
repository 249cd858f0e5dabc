"""The accept loop of all listeners: one connection at a time, and only if there is room."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from atoll.daemon.relay import reset
from atoll.daemon.resource_errors import SCARCE

_PAUSE_S = 0.2
_TRANSIENT = SCARCE | {
    errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.ENOPROTOOPT,
    errno.EHOSTDOWN, errno.ENONET, errno.EHOSTUNREACH, errno.EOPNOTSUPP, errno.ENETUNREACH,
}  # fmt: skip
"""Errors of one connection, which `accept` passes on, or of a shortage that passes."""


class Acceptor:
    """Accepts on listening sockets and passes every connection to `serve`.

    Each callback accepts one connection, so that the event loop can serve others in between.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        serve: Callable[[socket.socket], None],
        *,
        has_room: Callable[[], bool] = lambda: True,
        reserve: Callable[[], float] = lambda: 0.0,
        admits: Callable[[socket.socket], bool] = lambda _: True,
    ) -> None:
        """Connections wait in the kernel's queue while there is no room, and for as many seconds
        as `reserve`, which is called once for each of them, returns. Those that `admits` refuses
        are reset. OSError when the sockets cannot be watched; then they are closed.
        """
        self._sockets = sockets
        self._serve = serve
        self._has_room = has_room
        self._reserve = reserve
        self._admits = admits
        self._loop = asyncio.get_running_loop()
        self._pauses: dict[int, asyncio.TimerHandle] = {}
        self._reserved: set[int] = set()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        """Raises the OSError that made a listener unusable."""
        try:
            for sock in sockets:
                self._loop.add_reader(sock.fileno(), self._accept, sock)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Stops listening. Accepted connections stay."""
        for handle in self._pauses.values():
            handle.cancel()
        for sock in self._sockets:
            self._loop.remove_reader(sock.fileno())
            sock.close()
        self._sockets = []

    def _watch(self, sock: socket.socket) -> None:
        self._pauses.pop(sock.fileno(), None)
        try:
            self._loop.add_reader(sock.fileno(), self._accept, sock)
        except OSError:
            self._pause(sock)

    def _accept(self, sock: socket.socket) -> None:
        if not self._has_room():
            self._pause(sock)
            return
        if sock.fileno() not in self._reserved:
            self._reserved.add(sock.fileno())
            delay_s = self._reserve()
            if delay_s > 0:
                self._pause(sock, delay_s)
                return
        try:
            client, _ = sock.accept()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            if error.errno in _TRANSIENT:
                self._pause(sock)
            else:
                self._loop.remove_reader(sock.fileno())
                if not self.failed.done():
                    self.failed.set_exception(error)
            return
        self._reserved.discard(sock.fileno())
        self._admit(sock, client)

    def _admit(self, sock: socket.socket, client: socket.socket) -> None:
        try:
            is_admitted = self._admits(client)
        except OSError:
            # There is no resource left to find out whose connection it is.
            is_admitted = False
            self._pause(sock)
        if is_admitted:
            client.settimeout(0)
            self._serve(client)
        else:
            reset(client)

    def _pause(self, sock: socket.socket, pause_s: float = _PAUSE_S) -> None:
        """Stops watching for a while; to poll at once would only use processor time."""
        self._loop.remove_reader(sock.fileno())
        self._pauses[sock.fileno()] = self._loop.call_later(pause_s, self._watch, sock)


class ConnectionTasks:
    """The tasks that serve connections, which can be ended together."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], when_done: Callable[[], None]) -> None:
        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            when_done()
            error = None if task.cancelled() else task.exception()
            if error is not None:
                context = {"message": "a connection failed", "exception": error, "task": task}
                asyncio.get_running_loop().call_exception_handler(context)

        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(end)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
