"""Clients that speak HTTP/1.1 to the broker, through TLS or to the proxy's own port."""

from __future__ import annotations

import asyncio
import select
import socket
from dataclasses import replace

from atoll.daemon.broker.client_side import ClientGoneError, ResponseHead
from atoll.daemon.egress.http_requests import IDLE_S
from atoll.daemon.streams import Stream, wait_readable
from atoll.drivers.network import http1
from atoll.drivers.network.http1 import Field, Framing, HttpError, Request
from atoll.drivers.network.http1_decoding import LAST_CHUNK, BodyDecoder, encode_chunk

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CHECK_S = 1.0


class Http1Client:
    """One request on a connection, whose head was read."""

    def __init__(self, stream: Stream, request: Request) -> None:
        self._stream = stream
        self._request = request
        self._body = BodyDecoder(request.framing)
        wanted = [value.lower() for value in request.values(b"expect")]
        self._awaits_invitation = wanted == [b"100-continue"]
        self._is_chunked = False
        self._goes_on = False

    @property
    def framing(self) -> Framing:
        return self._request.framing

    @property
    def has_unread_body(self) -> bool:
        return not self._body.is_over

    @property
    def goes_on(self) -> bool:
        """Whether the client may send another request on this connection."""
        return self._goes_on

    async def invite_body(self) -> None:
        if self._awaits_invitation and self._request.minor:
            await self._stream.send(_CONTINUE)
        self._awaits_invitation = False

    async def read_body(self) -> bytes:
        while not self._body.is_over:
            if not self._stream.buffer:
                await self._fill()
            taken, payload = self._body.feed(bytes(self._stream.buffer))
            self._stream.take(taken)
            if payload:
                return payload
        return b""

    async def _fill(self) -> None:
        try:
            async with asyncio.timeout(IDLE_S):
                is_more = await self._stream.fill()
        except OSError:
            is_more = False
        if not is_more:
            raise ClientGoneError("the client broke its request off")

    async def wait_gone(self) -> None:
        # Nothing is read here: it might be the client's next request.
        await wait_readable(self._stream.sock)
        while not _is_closed(self._stream.sock):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(_CHECK_S)

    async def begin(self, head: ResponseHead) -> None:
        is_unframed = head.has_body and head.length is None
        self._is_chunked = is_unframed and bool(self._request.minor)
        is_endless = is_unframed and not self._is_chunked
        # Without an answer to its question, the client may or may not send the body.
        self._goes_on = self._request.keeps_alive and not self.has_unread_body and not is_endless
        fields = [*head.fields, *self._framing(head)]
        fields.append((b"Connection", b"keep-alive" if self._goes_on else b"close"))
        await self._send_head(head, fields)

    def _framing(self, head: ResponseHead) -> list[Field]:
        if self._is_chunked:
            return [(b"Transfer-Encoding", b"chunked")]
        if head.length is not None:
            return [(b"Content-Length", b"%d" % head.length)]
        return []

    async def _send_head(self, head: ResponseHead, fields: list[Field]) -> None:
        first = b"HTTP/1.1 %d %b" % (head.status, head.reason)
        await self._stream.send(http1.render(first, fields))

    async def send(self, data: bytes) -> None:
        await self._stream.send(encode_chunk(data) if self._is_chunked else data)

    async def end(self) -> None:
        if self._is_chunked:
            await self._stream.send(LAST_CHUNK)

    async def switch(self, head: ResponseHead) -> Stream:
        await self._send_head(head, [*head.fields])
        self._goes_on = False
        return self._stream

    def abort(self) -> None:
        self._goes_on = False
        self._stream.reset()


def _is_closed(sock: socket.socket) -> bool:
    """Whether the peer has closed its end. Reads nothing."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return bool(poll.poll(0))


async def read_request(stream: Stream, *, first_s: float, head_s: float) -> Request | None:
    """The next request on a connection; None at its end. HttpError when it is malformed."""
    try:
        if not await stream.find_start(first_s):
            return None
        # Without the lines: the request may take long, and has the fields.
        return replace(http1.parse_request(await stream.read_head(head_s)), lines=())
    except EOFError as error:
        raise HttpError(str(error)) from None
    except TimeoutError as error:
        raise HttpError(str(error)) from None
