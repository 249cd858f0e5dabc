"""The network of a capsule whose view is kept by a holder, which makes sockets in it on request."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from contextlib import ExitStack

from atoll.daemon import reserved_sockets
from atoll.daemon.resource_errors import SCARCE
from atoll.daemon.streams import wait_readable
from atoll.drivers.contracts import EgressSockets, NetworkGone, NetworkSilent
from atoll.host.listening_sockets import ListenerQuery, Listing, SocketCount, find_listening
from atoll.keeper import requests, wire
from atoll.keeper.networks import (
    CAUGHT_PORT,
    IPV6,
    LOOPBACK_ADDRESSES,
    NAMES_PORT,
    PROXY_PORT,
)

V4, V6 = int(socket.AF_INET), int(socket.AF_INET6)
STREAM, DATAGRAM = int(socket.SOCK_STREAM), int(socket.SOCK_DGRAM)
_BACKLOG = 1024
_FEW, _MANY = 3, 8
"""Spare sockets, so that most connections need not request one first."""
_CONNECT_S = 5.0
_AGAIN_S = 1.0
"""Between two attempts to watch a holder while the daemon lacks resources for it."""
_LISTING_S = 8.0
"""How long a listing is valid while the number of sockets stays the same."""
ANSWER_S = 10.0
"""A holder answers at once. One that was stopped is asked again later, on another connection."""


class HolderNetwork:
    """A `CapsuleNetwork` over two connections to the holder: one for requests, and one that stays
    silent and ends with the holder.
    """

    def __init__(self, directory: str, *, answer_s: float = ANSWER_S) -> None:
        self._directory = directory
        self.answer_s = answer_s
        self._turn = asyncio.Lock()
        self._asking: socket.socket | None = None
        self._watching: socket.socket
        self._store: deque[socket.socket] = deque()
        self._refill: asyncio.Task[None] | None = None
        self._diag: socket.socket | None = None
        self._count: SocketCount | None = None
        self._counted: tuple[bytes, ...] = ()
        self._listed_at = -_LISTING_S
        self._families = (V4, V6) if os.path.exists(IPV6) else (V4,)
        self.pid = 0

    async def connect(self) -> None:
        self._watching = self._connect()
        try:
            reply, _ = await self._ask({"ping": True})
            self.pid = int(str(reply["pid"]))
        except BaseException:
            self.close()
            raise

    def _connect(self) -> socket.socket:
        try:
            # Without waiting: the queue of a holder that was stopped may be full.
            return requests.connect(self._directory, timeout_s=0)
        except BlockingIOError as error:
            raise NetworkSilent("the holder does not answer") from error
        except OSError as error:
            if error.errno in SCARCE:
                raise NetworkSilent(str(error)) from error
            raise NetworkGone(str(error)) from error

    async def wait_closed(self) -> None:
        while True:
            try:
                return await _readable(self._watching)
            except OSError as error:
                if error.errno not in SCARCE:
                    raise
            await asyncio.sleep(_AGAIN_S)

    async def sockets(self, *wanted: tuple[int, int]) -> list[socket.socket]:
        """New sockets of the capsule's network, by (family, type), non-blocking."""
        _, fds = await self._ask({"sockets": [list(pair) for pair in wanted]})
        made = [socket.socket(fileno=fd) for fd in fds]
        for sock in made:
            sock.setblocking(False)  # noqa: FBT003
        return made

    def may_have_changed(self) -> bool:
        """By the number of sockets; after a while always, since one may have replaced another."""
        if self._count is None:
            self._count = SocketCount(self.pid)
        count = self._count.read()
        has_changed = not count or count != self._counted
        self._counted = count
        return has_changed or time.monotonic() >= self._listed_at + _LISTING_S

    def _require_held(self) -> None:
        """Sockets that were made before outlive the holder, and would answer for it."""
        try:
            is_held = bool(self._watching.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return
        except OSError as error:
            raise NetworkGone(str(error)) from error
        if not is_held:
            raise NetworkGone("the holder has ended")

    async def listening(self) -> Listing:
        self._require_held()
        # Set again at the end of a listing that succeeds.
        listed_at, self._listed_at = time.monotonic(), -_LISTING_S
        if self._diag is None:
            [self._diag] = await self.sockets((int(socket.AF_NETLINK), int(socket.SOCK_RAW)))
        query = ListenerQuery(self._diag)
        try:
            while (found := query.read_part()) is None:  # noqa: ASYNC110 - gives way, waits for nothing
                await asyncio.sleep(0)
        except OSError:  # a kernel that does not support the question
            self._close_diag()
            return await asyncio.to_thread(find_listening, self.pid) or Listing()
        if not found.is_complete:
            self._close_diag()
        self._listed_at = listed_at
        return found

    def _close_diag(self) -> None:
        if self._diag is not None:
            self._diag.close()
            self._diag = None

    async def open_egress(self, opened: ExitStack) -> EgressSockets:
        reserved = await reserved_sockets.borrow(self._directory, opened, backlog=_BACKLOG)
        # A holder of an earlier version keeps none.
        return reserved or EgressSockets(
            proxy=(await self._open(opened, PROXY_PORT, (V4,)))[0],
            transparent=await self._open(opened, CAUGHT_PORT, self._families),
            dns=await self._open(opened, NAMES_PORT, self._families, DATAGRAM),
            dns_streams=await self._open(opened, NAMES_PORT, self._families),
        )

    async def listen(self, opened: ExitStack, port: int) -> tuple[socket.socket, ...]:
        return await self._open(opened, port, self._families)

    async def _open(
        self, opened: ExitStack, port: int, families: tuple[int, ...], kind: int = STREAM
    ) -> tuple[socket.socket, ...]:
        """Sockets on the capsule's loopback. OSError when a process inside has the port."""
        made = await self.sockets(*((family, kind) for family in families))
        for sock in made:
            opened.enter_context(sock)
        for family, sock in zip(families, made, strict=True):
            if kind == STREAM:
                # For lingering connections of a former listener. On datagram sockets it would let a
                # process inside bind the same port and receive its datagrams.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == V6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((LOOPBACK_ADDRESSES[family], port))
            if kind == STREAM:
                sock.listen(_BACKLOG)
        return tuple(made)

    async def dial(self, port: int, address: str = "127.0.0.1") -> socket.socket:
        self._require_held()
        is_v4 = ":" not in address
        sock = await self._take() if is_v4 else (await self.sockets((V6, STREAM)))[0]
        try:
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(_CONNECT_S):
                await loop.sock_connect(sock, (address, port))
        except BaseException:
            sock.close()
            raise
        return sock

    async def _take(self) -> socket.socket:
        if len(self._store) <= _FEW and (self._refill is None or self._refill.done()):
            self._refill = asyncio.create_task(self._fill())
        if self._store:
            return self._store.popleft()
        return (await self.sockets((V4, STREAM)))[0]

    async def _fill(self) -> None:
        try:
            self._store += await self.sockets(*[(V4, STREAM)] * _MANY)
        except NetworkGone:
            return

    async def _ask(self, request: requests.HolderRequest) -> tuple[dict[str, object], list[int]]:
        async with self._turn:
            if self._asking is None:
                self._asking = self._connect()
            sock = self._asking
            try:
                requests.send(sock, request)
                async with asyncio.timeout(self.answer_s):
                    await _readable(sock)
                return requests.receive(sock)
            except BaseException as error:
                # What is still answered belongs to this request and must not be taken for the
                # answer to another one.
                self._asking = None
                sock.close()
                is_scarce = isinstance(error, OSError) and error.errno in SCARCE
                if is_scarce or isinstance(error, TimeoutError):
                    raise NetworkSilent("the holder does not answer") from error
                if isinstance(error, OSError | EOFError | wire.WireError):
                    raise NetworkGone(str(error)) from error
                raise

    def close(self) -> None:
        if self._refill is not None:
            self._refill.cancel()
        for sock in (self._asking, self._watching, *self._store):
            if sock is not None:
                sock.close()
        self._store.clear()
        self._close_diag()
        if self._count is not None:
            self._count.close()


async def _readable(sock: socket.socket) -> None:
    # A descriptor of its own: the loop allows one reader for each.
    with sock.dup() as own:
        await wait_readable(own)
