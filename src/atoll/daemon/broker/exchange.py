"""One request to a brokered host and its response, whatever protocol the client speaks.

Law: nothing is buffered but what may have to be sent again, each piece is passed on before the next
is read, and a response that was cut short never looks whole. When the client goes, or the grant
ends, the connection to the server is closed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from atoll.daemon.broker.admission import ClientRequest, Permit, Rejection
from atoll.daemon.broker.answer import Answer, CutShortError
from atoll.daemon.broker.client_side import ClientGoneError, ClientSide, ResponseHead
from atoll.daemon.broker.exchange_log import ExchangeLog
from atoll.daemon.broker.substitution import Substituted
from atoll.daemon.broker.taps import CLIENT_GONE, PREFIX_BYTES, NoTap, TrafficMeter, TrafficTap
from atoll.daemon.broker.upstream import ServerConnection
from atoll.daemon.egress.egress_log_writer import Journal
from atoll.daemon.streams import Stream
from atoll.drivers.network import http1
from atoll.drivers.network.http1 import Field, HttpError
from atoll.drivers.network.http1_decoding import LAST_CHUNK, encode_chunk

_BUFFERED_BYTES = 32 << 20
"""Of the body of a model request, so that it can be sent again after a quota is reset."""
_CHECK_S = 1.0
_UNAVAILABLE = 503
_UNREADABLE = frozenset((b"sec-websocket-extensions",))
"""Fields that would allow a response that cannot be counted."""
_CODED = frozenset((b"accept-encoding", b"a-im", b"te"))
"""Fields that would allow a response in which no real value can be found."""
_PARTIAL = frozenset((b"range", b"if-range", b"request-range"))
"""Fields that would allow parts of a response, each with a part of a real value."""
_BODY_METHODS = ("POST", "PUT", "PATCH")
T = TypeVar("T")


class ExchangePlace(Protocol):
    """What an exchange needs of the broker."""

    @property
    def host(self) -> str: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def meter(self) -> TrafficMeter: ...

    async def admit(self, request: ClientRequest) -> Permit:
        """Decides with the grants of this moment. Raises Rejection."""
        ...

    def is_granted(self, permit: Permit) -> bool:
        """Whether its grants still exist; may be a second old."""
        ...

    async def substitute(self, permit: Permit, request: ClientRequest) -> Substituted:
        """Raises Rejection when a value is not available."""
        ...

    async def connect(self, permit: Permit) -> ServerConnection:
        """Raises Rejection."""
        ...

    def reserve(self, size: int) -> bool:
        """Counts bytes that are buffered; negative when they no longer are. Returns whether there
        is room for more.
        """
        ...


class _Body(NamedTuple):
    """The beginning of a request's body, or all of it."""

    data: bytes = b""
    is_complete: bool = False


class _ServerDeafError(Exception):
    """The server takes no more of a request."""


class Exchange:
    def __init__(self, place: ExchangePlace, client: ClientSide, request: ClientRequest) -> None:
        self._place = place
        self._client = client
        self._request = request
        self._has_begun = False
        """Whether the client got the head of a response."""
        self._log = ExchangeLog(place.journal, place.host, request)

    async def run(self) -> None:
        """Raises OSError when the client has gone or its response was cut short."""
        try:
            with self._log.noted():
                await self._serve()
        except Rejection as rejection:
            if self._has_begun:
                self._client.abort()
                raise ClientGoneError from None
            await send_rejection(self._client, self._request.method, rejection)
        except CutShortError:
            self._client.abort()
            raise

    async def _serve(self) -> None:
        permit = await self._place.admit(self._request)
        counts = self._place.meter.counts(self._request.method, self._request.plain_path)
        if not (permit.model and counts):
            await self._attempt_uncounted(permit)
            return
        body = _Body()
        try:
            body = await self._buffer()
            while (wait_s := await self._attempt_counted(permit, body)) is not None:
                await self._held(permit, asyncio.sleep(wait_s), self._watch_client())
        finally:
            self._place.reserve(-len(body.data))

    async def _attempt_uncounted(self, permit: Permit) -> None:
        try:
            await self._attempt(permit, _Body(), None)
        except Rejection as rejection:
            if permit.model and rejection.status == _UNAVAILABLE:
                # An agent that cannot log in may never come to a model request.
                self._place.meter.answered(None, rejection.logged)
            raise

    async def _buffer(self) -> _Body:
        """Reads the body as far as there is room for it."""
        data = bytearray()
        if not self._client.has_unread_body:
            return _Body(is_complete=True)
        await self._client.invite_body()
        try:
            while len(data) < _BUFFERED_BYTES and self._place.reserve(0):
                piece = await self._read_body()
                if not piece:
                    return _Body(bytes(data), is_complete=True)
                self._place.reserve(len(piece))
                data += piece
        except BaseException:
            self._place.reserve(-len(data))
            raise
        return _Body(bytes(data))

    async def _attempt_counted(self, permit: Permit, body: _Body) -> float | None:
        """Returns the seconds after which the request is to be sent again."""
        meter, request = self._place.meter, self._request
        await self._held(permit, meter.admit(), self._watch_client())
        # It may have waited for long.
        permit = await self._place.admit(request)
        prefix = body.data[:PREFIX_BYTES]
        tap = meter.observe(request.method, request.plain_path, request.fields, prefix)
        error = CLIENT_GONE
        try:
            wait_s = await self._attempt(permit, body, tap)
            error = ""
        except Rejection as rejection:
            error = rejection.logged
            raise
        except CutShortError as cut:
            error = str(cut)
            raise
        finally:
            tap.end("" if self._log.is_complete else error)
        return wait_s

    async def _attempt(self, permit: Permit, body: _Body, tap: TrafficTap | None) -> float | None:
        """Sends the request once. Returns the seconds after which it is to be sent again."""
        opened: list[socket.socket] = []
        try:
            substituted = await self._held(
                permit, self._place.substitute(permit, self._request), self._watch_client()
            )
            found = await self._held(permit, self._connect(permit, opened), self._watch_client())
            self._log.begin(permit, found.address)
            if self._client.has_unread_body:
                await self._client.invite_body()
            answer = Answer(self._client, found.stream, self._request, substituted.replaced, tap)
            head = self._render_head(found, substituted, body, is_counted=tap is not None)
            upload = self._upload(found.stream, head, body, tap or NoTap())
            # The answer may take long: the headers are not kept for it.
            del head, substituted
            try:
                return await self._held(permit, answer.run(is_repeatable=body.is_complete), upload)
            finally:
                self._has_begun = answer.has_begun
                self._log.is_complete = answer.is_complete
                self._log.received += answer.received
        finally:
            for sock in opened:
                sock.close()

    async def _connect(self, permit: Permit, opened: list[socket.socket]) -> ServerConnection:
        found = await self._place.connect(permit)
        opened.append(found.stream.sock)
        return found

    async def _held(
        self,
        permit: Permit,
        work: Coroutine[Any, Any, T],
        watch: Coroutine[Any, Any, NoReturn],
    ) -> T:
        """The result of `work`, unless the grant ends or `watch` raises before."""
        main = asyncio.create_task(work)
        client, grant = (
            asyncio.create_task(watch),
            asyncio.create_task(self._watch_grant(permit)),
        )
        tasks = (main, client, grant)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if main.done():
                return main.result()
            return (client if client.done() else grant).result()
        finally:
            for task in tasks:
                task.cancel()
            # Their errors are those of a connection that is closed now.
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_client(self) -> NoReturn:
        """Raises ClientGoneError once it is known."""
        if self._client.has_unread_body or self._request.upgrade:
            # Then somebody else reads, or nothing can be known before the body was read.
            await _wait_forever()
        await self._client.wait_gone()
        raise ClientGoneError(CLIENT_GONE)

    async def _watch_grant(self, permit: Permit) -> NoReturn:
        while self._place.is_granted(permit):  # noqa: ASYNC110 - changed by other processes
            await asyncio.sleep(_CHECK_S)
        raise Rejection(403, "the grant was revoked or has expired")

    def _render_head(
        self, found: ServerConnection, substituted: Substituted, body: _Body, *, is_counted: bool
    ) -> bytes:
        request, place = self._request, found.place
        fields = [(b"Host", place.authority.encode()), *substituted.fields]
        dropped = _UNREADABLE if is_counted else frozenset[bytes]()
        if substituted.replaced:
            dropped |= _PARTIAL
        if is_counted or substituted.replaced:
            # The response is read, or searched for the real value.
            dropped |= _CODED
        fields = [field for field in fields if http1.usual_name(field[0]) not in dropped]
        if dropped:
            fields.append((b"Accept-Encoding", b"identity"))
        fields += self._framing(body)
        if request.upgrade:
            fields += [(b"Connection", b"Upgrade"), (b"Upgrade", request.upgrade)]
        else:
            fields.append((b"Connection", b"close"))
        target = f"{place.prefix}{request.path}{substituted.query}"
        return http1.render(f"{request.method} {target} HTTP/1.1".encode("ascii"), fields)

    def _framing(self, body: _Body) -> list[Field]:
        if self._is_chunked(body):
            return [(b"Transfer-Encoding", b"chunked")]
        length = len(body.data) if body.is_complete else self._client.framing.length or 0
        if length or self._request.method in _BODY_METHODS:
            return [(b"Content-Length", b"%d" % length)]
        return []

    def _is_chunked(self, body: _Body) -> bool:
        return self._client.framing.chunked and not body.is_complete

    async def _upload(self, server: Stream, head: bytes, body: _Body, tap: TrafficTap) -> NoReturn:
        """Sends the request with its body; then waits for the client to go."""
        is_chunked = self._is_chunked(body)
        tap.request_data(body.data)
        try:
            await self._send(server, head)
            del head
            await self._send(server, encode_chunk(body.data) if is_chunked else body.data)
            while self._client.has_unread_body and (piece := await self._read_body()):
                tap.request_data(piece)
                await self._send(server, encode_chunk(piece) if is_chunked else piece)
                await asyncio.sleep(0)
            if is_chunked:
                await self._send(server, LAST_CHUNK)
        except _ServerDeafError:
            # Its response says why.
            await _wait_forever()
        await self._watch_client()

    async def _read_body(self) -> bytes:
        try:
            return await self._client.read_body()
        except HttpError as error:
            raise Rejection(400, f"the body of the request: {error}") from None

    async def _send(self, server: Stream, data: bytes) -> None:
        try:
            await server.send(data)
        except OSError:
            raise _ServerDeafError from None
        self._log.sent += len(data)


async def send_rejection(client: ClientSide, method: str, rejection: Rejection) -> None:
    """Answers a request that is not forwarded."""
    body = rejection.body()
    has_body = method != "HEAD"
    fields = ((b"Content-Type", b"application/json"),)
    await client.begin(
        ResponseHead(rejection.status, rejection.reason, fields, len(body), has_body)
    )
    if has_body:
        await client.send(body)
    await client.end()


async def _wait_forever() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable")
