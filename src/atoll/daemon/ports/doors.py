"""Ports of the host's own loopback behind which a capsule's port lies.

Law: a door listens on loopback and nowhere else, and where it leads can change while it is open;
a connection that was let in stays with whom it was led to.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import struct
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from atoll.daemon.ports.admission import ADMISSION
from atoll.daemon.ports.site_guard import lead_guarded
from atoll.daemon.ports.targets import HOST, LOOPBACK, Target
from atoll.daemon.setbacks import SCARCE
from atoll.host.listening import family_of

BACKLOG = 1024
_AT_ONCE = 1
"""Connections that one socket accepts before others have their turn. More of them would be one long
callback, which the shares of the loop cannot interrupt."""
MAX_CONNECTIONS = 2048
"""Of one capsule, where the limit on descriptors permits; see `Guests`."""
_RESERVED = 16
"""Connections that each capsule may have when the others use up what all may have together."""
_PAUSE_S = 0.2
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_RESET = struct.pack("ii", 1, 0)


class Guests:
    """The connections that are being served, so that they can be ended together, and how many of
    them each capsule has.

    A connection takes two descriptors. All connections take at most three quarters of what the
    process may have, and those of one capsule at most a quarter.
    """

    def __init__(self, descriptors: int | None = None) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._counts: Counter[int] = Counter()
        self._descriptors = descriptors

    def __len__(self) -> int:
        return len(self._tasks)

    def has_room(self, capsule_id: int) -> bool:
        """Whether one more connection of the capsule can be accepted now."""
        limit = self._descriptors or resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        count = self._counts[capsule_id]
        if len(self._tasks) >= limit * 3 // 8:
            return count < _RESERVED
        return count < max(_RESERVED, min(MAX_CONNECTIONS, limit // 8))

    def serve(self, work: Coroutine[Any, Any, None], capsule_id: int = 0) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        self._counts[capsule_id] += 1
        task.add_done_callback(partial(self._leave, capsule_id))

    def _leave(self, capsule_id: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._counts[capsule_id] -= 1
        if not self._counts[capsule_id]:
            del self._counts[capsule_id]

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def listen(port: int, *, both: bool = False) -> list[socket.socket]:
    """Sockets that listen on 127.0.0.1, if `both` also on [::1] where that exists.

    OSError when one of them cannot; then none stays.
    """
    made: list[socket.socket] = []
    for address in LOOPBACK if both else LOOPBACK[:1]:
        try:
            made.append(_listen(address, port))
        except OSError as error:
            if made and error.errno in _NO_SUCH_FAMILY:
                continue
            for sock in made:
                sock.close()
            raise
    return made


def _listen(address: str, port: int) -> socket.socket:
    sock = socket.socket(family_of(address), socket.SOCK_STREAM)
    try:
        # Connections of the one who listened here before may still be ending.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, port))
        sock.listen(BACKLOG)
        sock.settimeout(0)
    except OSError:
        sock.close()
        raise
    return sock


class Reception:
    """Accepts on listening sockets and hands every client over.

    OSError when they cannot be watched; then they are closed.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        receive: Callable[[socket.socket], None],
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._sockets = sockets
        self._receive = receive
        self._has_room = has_room
        self._loop = asyncio.get_running_loop()
        self._pauses: dict[int, asyncio.TimerHandle] = {}
        try:
            for sock in sockets:
                self._loop.add_reader(sock.fileno(), self._accept, sock)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Lets nobody in any more. Who is in stays."""
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
        for _ in range(_AT_ONCE):
            if not self._has_room():
                self._pause(sock)
                return
            try:
                client, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in SCARCE:
                    raise
                self._pause(sock)
                return
            try:
                is_admitted = ADMISSION.admits(client)
            except OSError:
                # Who it is cannot be found out without resources.
                reset(client)
                self._pause(sock)
                return
            if not is_admitted:
                reset(client)
                continue
            client.settimeout(0)
            self._receive(client)

    def _pause(self, sock: socket.socket) -> None:
        """The kernel's queue keeps the clients; to ask again at once would only burn time."""
        self._loop.remove_reader(sock.fileno())
        self._pauses[sock.fileno()] = self._loop.call_later(_PAUSE_S, self._watch, sock)


class Door:
    """One port of the host that leads to `target`, which may be replaced at any time."""

    def __init__(self, port: int, target: Target, guests: Guests, *, both: bool = False) -> None:
        """OSError when the port cannot be had."""
        self.port = port
        self.target = target
        self._guests = guests
        self._reception = Reception(listen(port, both=both), self._receive, self._has_room)

    def close(self) -> None:
        self._reception.close()

    def _has_room(self) -> bool:
        return self._guests.has_room(self.target.capsule_id)

    def _receive(self, client: socket.socket) -> None:
        self._guests.serve(lead(client, self.target), self.target.capsule_id)


async def lead(client: socket.socket, target: Target) -> None:
    """Carries one connection to its target and back."""
    try:
        server = await target.dial()
    except OSError:
        # As near to a refusal as it gets once the connection stands.
        reset(client)
        return
    except asyncio.CancelledError:
        client.close()
        raise
    try:
        await lead_guarded(client, server)
    except OSError:
        reset(client)
        reset(server)
    finally:
        client.close()
        server.close()


def reset(sock: socket.socket) -> None:
    """Closes in a way that the other side cannot take for a proper end."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()


def carry_to(port: int) -> None:
    """A whole program, for `atoll bench`: leads a port that it prints to another one, for ever."""

    async def serve() -> None:
        guests, target = Guests(), Target(HOST, port, LOOPBACK[:1])
        sockets = listen(0)
        Reception(sockets, lambda client: guests.serve(lead(client, target)))
        os.write(1, b"%d\n" % sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(serve())
