"""The targets that connections to the host's ports are forwarded to."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import NamedTuple, Protocol

from atoll.host import tcp_diag
from atoll.host.listening_sockets import family_of
from atoll.model.state import CapsuleRecord

LOOPBACK = ("127.0.0.1", "::1")
DIAL_S = 10.0


async def connect(sock: socket.socket, address: str, port: int) -> None:
    """Of a non-blocking socket; on a loopback that is done at once. OSError when it fails."""
    code = sock.connect_ex((address, port))
    if code == errno.EINPROGRESS:
        loop = asyncio.get_running_loop()
        connected: asyncio.Future[None] = loop.create_future()
        loop.add_writer(sock.fileno(), _settle, connected)
        try:
            await connected
        finally:
            loop.remove_writer(sock.fileno())
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Network(Protocol):
    """A network that can be reached, whosever it is."""

    async def dial(self, port: int, address: str = "127.0.0.1") -> socket.socket:
        """A connected, non-blocking socket. ConnectionError when nothing listens there."""
        ...


class Inside(Network, Protocol):
    """How a capsule's own network is reached."""

    @property
    def capsule(self) -> CapsuleRecord: ...


class OnHost:
    """The host's network, for capsules that share it."""

    async def dial(self, port: int, address: str = "127.0.0.1") -> socket.socket:
        """PermissionError when another user listens there."""
        if not tcp_diag.is_own_listener(address, port):
            raise PermissionError(errno.EACCES, "another user listens there")
        sock = socket.socket(family_of(address), socket.SOCK_STREAM)
        try:
            sock.settimeout(0)
            await connect(sock, address, port)
        except BaseException:
            sock.close()
            raise
        return sock


HOST = OnHost()


class Target(NamedTuple):
    """One port of a capsule; `addresses` are tried in order, none means that nothing listens."""

    network: Network | None
    port: int
    addresses: tuple[str, ...] = ()
    capsule_id: int = 0
    """Whose share of the connections is used; 0 for none."""

    async def dial(self) -> socket.socket:
        """ConnectionError when nothing listens, TimeoutError when there is no answer."""
        failure: OSError = ConnectionRefusedError(errno.ECONNREFUSED, "nothing listens there")
        if self.network is None:
            raise failure
        for address in self.addresses:
            try:
                async with asyncio.timeout(DIAL_S):
                    return await self.network.dial(self.port, address)
            except ConnectionError as error:
                failure = error
        raise failure
