"""Listeners on the host's loopback that forward to the ports of capsules.

Only the owner of the daemon, and root, may connect: every process of every user can connect to
127.0.0.1, and a server inside could not distinguish them. The target of a port can change while it
is open; a connection that was accepted stays with its target.
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import os
import resource
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from atoll.daemon.acceptor import Acceptor, ConnectionTasks
from atoll.daemon.ports.site_guard import forward_guarded
from atoll.daemon.ports.targets import LOOPBACK, Target
from atoll.daemon.relay import reset
from atoll.engine.network import router
from atoll.host.listening_sockets import family_of
from atoll.host.tcp_diag import PeerUsers


class Admission:
    """The rule for all listeners of one process."""

    def __init__(self) -> None:
        self._peers: PeerUsers | None = None
        self._home: Path | None = None

    def configure(self, home: Path) -> None:
        """Has the owner's choice to share the ports of a home respected."""
        self._home = home

    def admits(self, client: socket.socket) -> bool:
        """Whether the peer of an accepted connection is the owner or root.

        A connection whose user is unknown is refused, such as one that was closed already.
        """
        if self._peers is None:
            self._peers = PeerUsers()
            atexit.register(self._peers.close)
        if self._peers.uid_of_peer(client) in (os.geteuid(), 0):
            return True
        return self._home is not None and router.is_shared(self._home)


ADMISSION = Admission()


BACKLOG = 1024
MAX_CONNECTIONS = 2048
"""Of one capsule, where the limit on descriptors permits; see `PortConnections`."""
_RESERVED = 16
"""Connections that each capsule may have when the others use up what all may have together."""
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


class PortConnections:
    """The connections that are being served, so that they can be ended together, and how many of
    them each capsule has.

    A connection takes two descriptors. All connections take at most three quarters of what the
    process may have, and those of one capsule at most a quarter.
    """

    def __init__(self, descriptors: int | None = None) -> None:
        self._tasks = ConnectionTasks()
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
        self._counts[capsule_id] += 1
        self._tasks.start(work, partial(self._leave, capsule_id))

    def _leave(self, capsule_id: int) -> None:
        self._counts[capsule_id] -= 1
        if not self._counts[capsule_id]:
            del self._counts[capsule_id]

    async def close(self) -> None:
        await self._tasks.close()


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
        # Connections of a former listener may still be closing.
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


def accept(
    sockets: list[socket.socket],
    serve: Callable[[socket.socket], None],
    has_room: Callable[[], bool] = lambda: True,
) -> Acceptor:
    """Accepts the connections of users who may use the ports. OSError as for `Acceptor`."""
    return Acceptor(sockets, serve, has_room=has_room, admits=ADMISSION.admits)


class PortForward:
    """One port of the host that is forwarded to `target`, which may be replaced at any time."""

    def __init__(
        self, port: int, target: Target, connections: PortConnections, *, both: bool = False
    ) -> None:
        """OSError when the port cannot be opened."""
        self.port = port
        self.target = target
        self._connections = connections
        self._acceptor = accept(listen(port, both=both), self._receive, self._has_room)

    def close(self) -> None:
        self._acceptor.close()

    def _has_room(self) -> bool:
        return self._connections.has_room(self.target.capsule_id)

    def _receive(self, client: socket.socket) -> None:
        self._connections.serve(forward_connection(client, self.target), self.target.capsule_id)


async def forward_connection(client: socket.socket, target: Target) -> None:
    """Carries one connection to its target and back."""
    try:
        server = await target.dial()
    except OSError:
        # The closest to a refusal for an established connection.
        reset(client)
        return
    except asyncio.CancelledError:
        client.close()
        raise
    try:
        await forward_guarded(client, server)
    except OSError:
        reset(client)
        reset(server)
    finally:
        client.close()
        server.close()
