"""A capsule's network played by the host's loopback: each port inside is another port out here."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from contextlib import ExitStack

from atoll.drivers.contracts import EgressSockets, NetworkGone
from atoll.host.listening_sockets import Listening, Listing
from atoll.keeper.networks import CAUGHT_PORT, NAMES_PORT, PROXY_PORT
from atoll.model.state import CapsuleRecord

_HOST = "127.0.0.1"


class FakeNetwork:
    """A `CapsuleNetwork` without namespaces and processes."""

    def __init__(self, capsule: CapsuleRecord | None = None) -> None:
        self.capsule = capsule
        self.served: dict[int, int] = {}
        """Ports on which something listens inside, each with the port of the host that plays it."""
        self.opened: dict[tuple[int, int], int] = {}
        """The same for the daemon's own sockets, by (type, port)."""
        self.is_connected = False
        self._has_changed = True
        self._is_gone = asyncio.Event()

    def serve(self, port: int, on_host: int | None) -> None:
        """Something starts to listen on a port inside, or, with None, stops."""
        self._has_changed = True
        if on_host is None:
            del self.served[port]
        else:
            self.served[port] = on_host

    def end(self) -> None:
        """As when the process that holds the network ends."""
        self._is_gone.set()

    async def connect(self) -> None:
        self._require()
        self.is_connected = True

    async def wait_closed(self) -> None:
        await self._is_gone.wait()

    async def open_egress(self, opened: ExitStack) -> EgressSockets:
        self._require()
        return EgressSockets(
            proxy=self._open(opened, PROXY_PORT),
            transparent=(self._open(opened, CAUGHT_PORT),),
            dns=(self._open(opened, NAMES_PORT, socket.SOCK_DGRAM),),
            dns_streams=(self._open(opened, NAMES_PORT),),
        )

    async def listen(self, opened: ExitStack, port: int) -> tuple[socket.socket, ...]:
        self._require()
        sock = self._open(opened, port)
        self.serve(port, sock.getsockname()[1])
        opened.callback(self.serve, port, None)
        return (sock,)

    async def dial(self, port: int, address: str = _HOST) -> socket.socket:
        del address
        self._require()
        if port not in self.served:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        sock = socket.socket()
        try:
            sock.setblocking(False)  # noqa: FBT003
            await asyncio.get_running_loop().sock_connect(sock, (_HOST, self.served[port]))
        except BaseException:
            sock.close()
            raise
        return sock

    def may_have_changed(self) -> bool:
        return self._has_changed

    async def listening(self) -> Listing:
        self._require()
        self._has_changed = False
        return Listing(frozenset(Listening(_HOST, port) for port in self.served))

    def close(self) -> None:
        self.is_connected = False

    def _require(self) -> None:
        if self._is_gone.is_set():
            raise NetworkGone("the network has ended")

    def _open(
        self, opened: ExitStack, port: int, kind: socket.SocketKind = socket.SOCK_STREAM
    ) -> socket.socket:
        if port in self.served or (int(kind), port) in self.opened:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        sock = opened.enter_context(socket.socket(type=kind))
        sock.setblocking(False)  # noqa: FBT003
        sock.bind((_HOST, 0))
        if kind == socket.SOCK_STREAM:
            sock.listen()
        self.opened[int(kind), port] = sock.getsockname()[1]
        opened.callback(self.opened.pop, (int(kind), port))
        return sock
