"""One listener for all capsules: a request's host name says whom it is for.

Requests are read message by message, so that none reaches a capsule by a name that is not its
own; bodies and responses are passed on as they come. A connection belongs to one name.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from atoll.daemon.carrying import CHUNK_BYTES, Glance, pour
from atoll.daemon.ports.checkouts import explain
from atoll.daemon.ports.doors import Guests, Reception, listen, reset
from atoll.daemon.ports.messages import (
    BadRequestError,
    Body,
    Head,
    find_end,
    parse_head,
    parse_host,
)
from atoll.daemon.ports.pages import Answer
from atoll.daemon.ports.publishing import Publisher, Route
from atoll.engine import urls
from atoll.model.state import Capsule

_FIRST_S = 60.0
"""How long a connection may stay without its first request."""
_HEAD_S = 15.0
"""How long a head may take from its first byte."""
_LINGER_S = 2.0
_AGAIN_S = 1.0
_UPGRADED = (b"HTTP/1.1 101", b"HTTP/1.0 101")


class Router:
    """Listens where the publisher's URLs point to."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._guests = Guests()
        self._reception: Reception | None = None
        self._inodes: list[int] = []
        self._port = 0

    async def serve(self) -> None:
        """Until cancelled. A port that somebody else has is tried again: URLs must stay."""
        try:
            while True:
                self._open()
                await asyncio.sleep(_AGAIN_S)
        finally:
            self._close()
            await self._guests.close()

    def handlers(self) -> dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]]:
        """The requests that it answers over the daemon's control socket."""
        return {"router": self._report}

    async def _report(self, request: dict[str, Any]) -> dict[str, Any]:
        """Where it listens, with what the kernel calls its sockets, or why it does not."""
        del request
        await self._publisher.look()
        self._open()
        error, reason, cure = self._publisher.router_trouble, None, None
        if error is not None:
            reason, cure = await asyncio.to_thread(explain, self._port, error)
        return {"port": self._port, "inodes": self._inodes, "trouble": reason, "cure": cure}

    def _open(self) -> None:
        """Listens where it should, if it does not yet."""
        publisher = self._publisher
        if self._reception is not None and self._port == publisher.router_port:
            return
        self._close()
        self._port = publisher.router_port
        try:
            sockets = listen(self._port, both=True)
            inodes = [os.fstat(sock.fileno()).st_ino for sock in sockets]
            self._reception = Reception(sockets, self._receive)
        except OSError as error:
            publisher.router_trouble = error
            return
        publisher.router_trouble = None
        self._inodes = inodes

    def _close(self) -> None:
        if self._reception is not None:
            self._reception.close()
            self._reception = None
            self._inodes = []

    def _receive(self, client: socket.socket) -> None:
        self._guests.serve(self._visit(client))

    async def _visit(self, client: socket.socket) -> None:
        visit = Visit(self._publisher, client)
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await visit.serve()
        except (OSError, TimeoutError):
            # The client broke off, or was too slow: there is nobody to answer.
            reset(client)
        finally:
            visit.close()


class Visit:
    """One client's connection, from its first request to its end."""

    def __init__(self, publisher: Publisher, client: socket.socket) -> None:
        self._publisher = publisher
        self._client = client
        self._server: socket.socket | None = None
        self._buffer = bytearray()
        self._labels: tuple[str, ...] = ()
        self._glance = Glance()
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        self._client.close()
        if self._server is not None:
            self._server.close()

    async def serve(self) -> None:
        """OSError or TimeoutError when the client is lost."""
        head: Head | None = None
        try:
            head = await self._next_head(_FIRST_S)
            if head is None:
                return
            route = await self._require_route(head)
            server = await _dial(route)
        except BadRequestError as error:
            await self._refuse(Answer(error.status, str(error)), head)
        except UnroutableError as error:
            await self._refuse(error.answer, head)
        else:
            self._server = server
            await self._serve_through(server, head)

    async def _serve_through(self, server: socket.socket, head: Head) -> None:
        """Requests there, responses back, until the server ends the connection."""
        back = self._loop.create_task(
            pour(server, self._client, glance=self._glance, passes_end=False)
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
        if error is not None and not isinstance(error, BadRequestError):
            raise error
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)
        if error is None:
            await back
            return
        done, _ = await asyncio.wait({back}, timeout=_LINGER_S)
        if done and back.exception() is None:
            await self._refuse(Answer(error.status, str(error)), None)

    async def _send_requests(self, server: socket.socket, first: Head) -> None:
        """OSError when a side is lost, BadRequestError for what must not be passed on."""
        head: Head | None = first
        while head is not None:
            if parse_host(head.host) != self._labels:
                raise BadRequestError(421, "another host on the same connection")
            answered = self._listen_for_answer() if head.is_upgrade else None
            await self._send_request(server, head)
            if answered is not None and await answered in _UPGRADED:
                await pour(self._client, server, first=bytes(self._buffer))
                return
            head = await self._next_head(None)

    async def _send_request(self, server: socket.socket, head: Head) -> None:
        body = Body(head)
        ready = body.take(self._buffer)
        data = head.forwarded() + bytes(self._buffer[:ready])
        del self._buffer[:ready]
        await self._loop.sock_sendall(server, data)
        while not body.is_over:
            piece = await self._loop.sock_recv(self._client, CHUNK_BYTES)
            if not piece:
                raise ConnectionResetError("the client left in the middle of a body")
            ready = body.take(piece)
            await self._loop.sock_sendall(server, memoryview(piece)[:ready])
            self._buffer += piece[ready:]

    def _listen_for_answer(self) -> asyncio.Future[bytes]:
        """The beginning of what the server says next."""
        said: asyncio.Future[bytes] = self._loop.create_future()
        heard = bytearray()

        def hear(data: bytes) -> None:
            heard.extend(data[:16])
            if len(heard) >= len(_UPGRADED[0]) and not said.done():
                self._glance.hear = None
                said.set_result(bytes(heard[: len(_UPGRADED[0])]))

        self._glance.hear = hear
        return said

    async def _next_head(self, patience_s: float | None) -> Head | None:
        """The next request, None when the client has ended. Waits so long for its first byte.

        TimeoutError when it takes too long, BadRequestError when it is none.
        """
        if not self._buffer:
            async with asyncio.timeout(patience_s):
                self._buffer += await self._loop.sock_recv(self._client, CHUNK_BYTES)
            if not self._buffer:
                return None
        async with asyncio.timeout(_HEAD_S):
            while (end := find_end(self._buffer)) is None:
                piece = await self._loop.sock_recv(self._client, CHUNK_BYTES)
                if not piece:
                    return None
                self._buffer += piece
        data = bytes(self._buffer[:end])
        del self._buffer[:end]
        return parse_head(data)

    async def _require_route(self, head: Head) -> Route:
        labels = parse_host(head.host)
        if labels is None:
            # A foreign name that was made to lead here: its page may read this answer.
            raise UnroutableError(Answer(421, "this host name does not belong to a capsule"))
        route = self._publisher.find_route(labels)
        if route is None:
            await self._publisher.look()
            route = self._publisher.find_route(labels)
        if route is None:
            raise UnroutableError(self._explain(labels, is_direct=head.is_direct))
        self._labels = labels
        return route

    def _explain(self, labels: tuple[str, ...], *, is_direct: bool) -> Answer:
        """The answer for a name below `localhost` that leads nowhere.

        Only a person who asks directly is shown other names, and only those of the capsule that
        the name belongs to, or of its project when it has no such capsule.
        """
        host = ".".join((*labels, urls.DOMAIN))
        if len(labels) in (2, 3) and (
            former := self._publisher.census.find_capsule(labels[-1], labels[-2])
        ):
            site = self._publisher.census.site_of(former)
            link = urls.url(self._publisher.router_port, *labels[:-2], site)
            text = f"`{host}` is the former name of a capsule; use its own site"
            return Answer(410, text, links=[(link, "")])
        text = f"`{host}` is not the name of a port of a capsule"
        links = self._links(labels[-1]) if labels and is_direct else []
        return Answer(404, text, "atoll ports", links)

    def _links(self, label: str) -> list[tuple[str, str]]:
        """The URLs of the capsule with this site, or else of the project that it names."""
        census = self._publisher.census
        named = label.rpartition("--")[2]
        if label in census.sites:
            capsules = [census.capsules[census.sites[label]]]
        else:
            capsules = [c for c in census.capsules.values() if census.labels[c.project_id] == named]
        return [link for capsule in capsules for link in self._capsule_links(capsule)]

    def _capsule_links(self, capsule: Capsule) -> list[tuple[str, str]]:
        site = self._publisher.census.site_of(capsule)
        return [
            (
                urls.url(self._publisher.router_port, name, site),
                "" if target.addresses else "(nothing listens there)",
            )
            for name, target in self._publisher.named_targets(capsule).items()
        ]

    async def _refuse(self, answer: Answer, head: Head | None) -> None:
        """Answers and ends. What the client still sends is read, or it might never hear us."""
        accept, method = (head.accept, head.method) if head is not None else ("", "GET")
        await self._loop.sock_sendall(self._client, answer.render(accept=accept, method=method))
        self._client.shutdown(socket.SHUT_WR)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while await self._loop.sock_recv(self._client, CHUNK_BYTES):
                    pass


class UnroutableError(Exception):
    """A request for which the router itself has the answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.text)
        self.answer = answer


async def _dial(route: Route) -> socket.socket:
    try:
        server = await route.target.dial()
    except OSError as error:
        number = route.capsule.numbers.get(route.name, route.target.port)
        if route.target.addresses and not isinstance(error, ConnectionRefusedError):
            text = f"`{route.name}` of `{route.capsule.name}` cannot be reached: {error.strerror}"
            raise UnroutableError(Answer(502, text, again=True)) from error
        where = f"`{route.capsule.name}`, where `{route.name}` is port {number}"
        raise UnroutableError(
            Answer(
                503,
                f"nothing listens in {where}" if route.name != str(number) else
                f"nothing listens on port {number} in `{route.capsule.name}`",
                f"atoll run {route.capsule.name} -d -- COMMAND",
                again=True,
            )
        ) from error  # fmt: skip
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return server
