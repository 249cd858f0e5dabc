"""One listener for all capsules: the host name of a request selects the capsule.

Requests are read message by message, so that none reaches a capsule by a name that is not its own;
bodies and responses are relayed unchanged. A connection belongs to one name.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from contextlib import suppress
from typing import NamedTuple

from atoll.daemon.acceptor import Acceptor
from atoll.daemon.ports.checkout_ports import explain
from atoll.daemon.ports.host_listeners import PortConnections, accept, listen
from atoll.daemon.ports.pages import Page
from atoll.daemon.ports.publisher import Publisher, Route
from atoll.daemon.relay import Tap, relay_one_way, reset
from atoll.daemon.streams import Stream
from atoll.drivers.network import http1
from atoll.drivers.network.http1 import HttpError, Request, body_of
from atoll.engine.network import urls
from atoll.model.daemon_messages import RouterReply
from atoll.model.state import CapsuleRecord

_FIRST_S = 60.0
"""How long a connection may stay without its first request."""
_HEAD_S = 15.0
_DRAIN_BYTES = 16 << 20
"""How much of an upload is read that the router answers itself."""
"""How long a head may take from its first byte."""
_LINGER_S = 2.0
_AGAIN_S = 1.0
_UPGRADED = (b"HTTP/1.1 101", b"HTTP/1.0 101")
_HOST = re.compile(r"(?:([a-z0-9-]+(?:\.[a-z0-9-]+)*)\.)?localhost\.?(?::[0-9]{1,5})?")
_FORWARDED = (b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-for")
_NOT_ALLOWED, _MISDIRECTED = 405, 421


class SiteRequest(NamedTuple):
    """The head of a request to the site of a capsule."""

    request: Request
    host: str

    @property
    def is_upgrade(self) -> bool:
        has_protocol = bool(self.request.values(b"upgrade"))
        return has_protocol and b"upgrade" in self.request.connection_options

    @property
    def is_direct(self) -> bool:
        """Whether a person made it with an address bar or a command, not a page or a link.

        Browsers report this, and a page cannot forge it (Fetch Metadata).
        """
        values = self.request.values
        if values(b"origin") or values(b"referer"):
            return False
        return all(value.lower() == b"none" for value in values(b"sec-fetch-site"))

    @property
    def accept(self) -> str:
        return b",".join(self.request.values(b"accept")).decode("latin-1")

    def forwarded(self) -> bytes:
        """The head for the server: as it was sent, with our own `X-Forwarded` fields."""
        kept = [
            line for line in self.request.lines if line.partition(b":")[0].lower() not in _FORWARDED
        ]
        host = self.host.encode("latin-1")
        ours = (b"X-Forwarded-Host: " + host, b"X-Forwarded-Proto: http",
                b"X-Forwarded-For: 127.0.0.1")  # fmt: skip
        return b"\r\n".join((*kept, *ours)) + http1.END


def parse_site_request(head: bytes) -> SiteRequest:
    """Parses a whole head. Raises HttpError."""
    request = http1.parse_request(head)
    if request.is_connect:
        raise HttpError("this is not a proxy", _NOT_ALLOWED)
    hosts = request.values(b"host")
    if not hosts:
        raise HttpError("the request has no `Host`")
    _require_same_host(request.target, hosts[0])
    return SiteRequest(request, hosts[0].decode("latin-1"))


def _require_same_host(target: bytes, host: bytes) -> None:
    """Servers prefer the host of an absolute target to `Host`, so they must be equal."""
    if target.startswith(b"/") or target == b"*":
        return
    absolute = http1.ABSOLUTE.fullmatch(target)
    if absolute is None or absolute[1] != host:
        raise HttpError("the target of the request is not on its host")


def parse_host(text: str) -> tuple[str, ...] | None:
    """The labels before `localhost`; None for any other host, such as the name of a foreign site
    that resolves to the loopback (DNS rebinding).
    """
    found = _HOST.fullmatch(text.lower())
    if found is None:
        return None
    return tuple(found[1].split(".")) if found[1] else ()


class Router:
    """Listens where the publisher's URLs point to."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._connections = PortConnections()
        self._acceptor: Acceptor | None = None
        self._inodes: list[int] = []
        self._port = 0

    async def serve(self) -> None:
        """Until cancelled. A port that another program has is tried again: URLs must stay."""
        try:
            while True:
                self._open()
                await asyncio.sleep(_AGAIN_S)
        finally:
            self._close()
            await self._connections.close()

    async def report(self) -> RouterReply:
        """The port and the inodes of its listening sockets, or why it has none."""
        await self._publisher.sync()
        self._open()
        error, reason, cure = self._publisher.router_trouble, None, None
        if error is not None:
            reason, cure = await asyncio.to_thread(explain, self._port, error)
        return RouterReply(self._port, tuple(self._inodes), reason, cure)

    def _open(self) -> None:
        """Listens where it should, if it does not yet."""
        publisher = self._publisher
        is_open = self._acceptor is not None and not self._acceptor.failed.done()
        if is_open and self._port == publisher.router_port:
            return
        self._close()
        self._port = publisher.router_port
        try:
            sockets = listen(self._port, both=True)
            inodes = [os.fstat(sock.fileno()).st_ino for sock in sockets]
            self._acceptor = accept(sockets, self._receive)
        except OSError as error:
            publisher.router_trouble = error
            return
        publisher.router_trouble = None
        self._inodes = inodes

    def _close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
            self._inodes = []

    def _receive(self, client: socket.socket) -> None:
        self._connections.serve(self._serve_client(client))

    async def _serve_client(self, client: socket.socket) -> None:
        connection = ClientConnection(self._publisher, client)
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await connection.serve()
        except (OSError, TimeoutError):
            # The client closed the connection, or was too slow.
            reset(client)
        finally:
            connection.close()


class ClientConnection:
    """One client's connection, from its first request to its end."""

    def __init__(self, publisher: Publisher, client: socket.socket) -> None:
        self._publisher = publisher
        self._client = Stream(client)
        self._server: socket.socket | None = None
        self._labels: tuple[str, ...] = ()
        self._tap = Tap()
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        self._client.sock.close()
        if self._server is not None:
            self._server.close()

    async def serve(self) -> None:
        """OSError or TimeoutError when the client is lost."""
        head: SiteRequest | None = None
        try:
            head = await self._next_request(_FIRST_S)
            if head is None:
                return
            route = await self._require_route(head)
            server = await _dial(route)
        except HttpError as error:
            await self._refuse(Page(error.status, str(error)), head)
        except UnroutableError as error:
            await self._refuse(error.answer, head)
        else:
            self._server = server
            await self._serve_through(server, head)

    async def _serve_through(self, server: socket.socket, head: SiteRequest) -> None:
        """Requests there, responses back, until the server ends the connection."""
        back = self._loop.create_task(
            relay_one_way(server, self._client.sock, tap=self._tap, passes_end=False)
        )
        there = self._loop.create_task(self._send_requests(server, head))
        try:
            await asyncio.wait({back, there}, return_when=asyncio.FIRST_COMPLETED)
            if not there.done():
                await back
                return
            await self._end_requests(server, there, back)
        finally:
            for task in (back, there):
                task.cancel()
            await asyncio.gather(back, there, return_exceptions=True)

    async def _end_requests(
        self, server: socket.socket, there: asyncio.Task[None], back: asyncio.Task[int]
    ) -> None:
        """No more requests come: what was asked for is still answered, then comes our own word."""
        error = there.exception()
        if isinstance(error, ConnectionError):
            # The server takes no more; its answer may be on the way.
            await asyncio.wait({back}, timeout=_LINGER_S)
            return
        if error is not None and not isinstance(error, HttpError):
            raise error
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)
        if error is None:
            await back
            return
        done, _ = await asyncio.wait({back}, timeout=_LINGER_S)
        if done and back.exception() is None:
            await self._refuse(Page(error.status, str(error)), None)

    async def _send_requests(self, server: socket.socket, first: SiteRequest) -> None:
        """OSError when a side is lost, HttpError for what must not be passed on."""
        head: SiteRequest | None = first
        while head is not None:
            if parse_host(head.host) != self._labels:
                raise HttpError("another host on the same connection", _MISDIRECTED)
            answered = self._listen_for_answer() if head.is_upgrade else None
            await self._send_request(server, head)
            if answered is not None and await answered in _UPGRADED:
                await relay_one_way(self._client.sock, server, first=self._client.take())
                return
            head = await self._next_request(None)

    async def _send_request(self, server: socket.socket, head: SiteRequest) -> None:
        body, client = body_of(head.request.framing), self._client
        data = head.forwarded() + client.take(body.take(client.buffer))
        await self._loop.sock_sendall(server, data)
        while not body.is_over:
            if not await client.fill():
                raise ConnectionResetError("the client closed in the middle of a body")
            await self._loop.sock_sendall(server, client.take(body.take(client.buffer)))

    def _listen_for_answer(self) -> asyncio.Future[bytes]:
        """The beginning of the server's next output."""
        said: asyncio.Future[bytes] = self._loop.create_future()
        heard = bytearray()

        def on_data(data: bytes) -> None:
            heard.extend(data[:16])
            if len(heard) >= len(_UPGRADED[0]) and not said.done():
                self._tap.on_data = None
                said.set_result(bytes(heard[: len(_UPGRADED[0])]))

        self._tap.on_data = on_data
        return said

    async def _next_request(self, wait_s: float | None) -> SiteRequest | None:
        """The next request; None when the client has closed. Waits `wait_s` for its first byte.

        TimeoutError when it takes too long, HttpError when it is malformed.
        """
        client = self._client
        async with asyncio.timeout(wait_s):
            if not client.buffer and not await client.fill():
                return None
        async with asyncio.timeout(_HEAD_S):
            # Some clients send an empty line after a body (RFC 9112, section 2.2).
            while b"\r\n".startswith(client.buffer[:2]):
                if len(client.buffer) >= 2:
                    client.take(2)
                elif not await client.fill():
                    return None
        try:
            return parse_site_request(await client.read_head(_HEAD_S))
        except EOFError:
            return None

    async def _require_route(self, head: SiteRequest) -> Route:
        labels = parse_host(head.host)
        if labels is None:
            # A foreign name that was made to resolve to 127.0.0.1: its page may read this answer.
            raise UnroutableError(Page(421, "this host name does not belong to a capsule"))
        route = self._publisher.find_route(labels)
        if route is None:
            await self._publisher.sync()
            route = self._publisher.find_route(labels)
        if route is None:
            raise UnroutableError(self._explain(labels, is_direct=head.is_direct))
        self._labels = labels
        return route

    def _explain(self, labels: tuple[str, ...], *, is_direct: bool) -> Page:
        """The answer for an unknown name below `localhost`.

        Only direct navigation is answered with other names, and only with those of the capsule that
        the name belongs to, or of its project when it has no such capsule.
        """
        host = ".".join((*labels, urls.DOMAIN))
        if len(labels) in (2, 3) and (
            former := self._publisher.cache.find_capsule(labels[-1], labels[-2])
        ):
            site = self._publisher.cache.site_of(former)
            link = urls.url(self._publisher.router_port, *labels[:-2], site)
            text = f"`{host}` is the former name of a capsule; use its own site"
            return Page(410, text, links=[(link, "")])
        text = f"`{host}` is not the name of a port of a capsule"
        links = self._links(labels[-1]) if labels and is_direct else []
        return Page(404, text, "atoll ports", links)

    def _links(self, label: str) -> list[tuple[str, str]]:
        """The URLs of the capsule with this site, or else of the project that it names."""
        cache = self._publisher.cache
        named = label.rpartition("--")[2]
        if label in cache.sites:
            capsules = [cache.capsules[cache.sites[label]]]
        else:
            capsules = [c for c in cache.capsules.values() if cache.labels[c.project_id] == named]
        return [link for capsule in capsules for link in self._capsule_links(capsule)]

    def _capsule_links(self, capsule: CapsuleRecord) -> list[tuple[str, str]]:
        site = self._publisher.cache.site_of(capsule)
        return [
            (
                urls.url(self._publisher.router_port, name, site),
                "" if target.addresses else "(nothing listens there)",
            )
            for name, target in self._publisher.named_targets(capsule).items()
        ]

    async def _refuse(self, answer: Page, head: SiteRequest | None) -> None:
        accept, method = (head.accept, head.request.method) if head is not None else ("", "GET")
        await self._client.send(answer.render(accept=accept, method=method))
        await self._client.finish(drain_bytes=_DRAIN_BYTES)


class UnroutableError(Exception):
    """A request for which the router itself has the answer."""

    def __init__(self, answer: Page) -> None:
        super().__init__(answer.text)
        self.answer = answer


async def _dial(route: Route) -> socket.socket:
    try:
        server = await route.target.dial()
    except OSError as error:
        number = route.capsule.numbers.get(route.name, route.target.port)
        if route.target.addresses and not isinstance(error, ConnectionRefusedError):
            text = f"`{route.name}` of `{route.capsule.name}` cannot be reached: {error.strerror}"
            raise UnroutableError(Page(502, text, again=True)) from error
        where = f"`{route.capsule.name}`, where `{route.name}` is port {number}"
        raise UnroutableError(
            Page(
                503,
                f"nothing listens in {where}" if route.name != str(number) else
                f"nothing listens on port {number} in `{route.capsule.name}`",
                f"atoll run {route.capsule.name} -d -- COMMAND",
                again=True,
            )
        ) from error  # fmt: skip
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return server
