"""The response of a real server, passed on to the client piece by piece.

A real value that the server repeats in a header, or in a text without a content coding, is replaced
by the placeholder again. In other bodies it is not searched for. A part of a text may have a part
of a value, which cannot be found: it is not passed on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from atoll.daemon.broker.admission import ClientRequest, Rejection
from atoll.daemon.broker.client_side import ClientSide, ResponseHead
from atoll.daemon.broker.concealment import Concealer, conceal
from atoll.daemon.broker.taps import TrafficTap
from atoll.daemon.egress.http_requests import IDLE_S
from atoll.daemon.streams import Stream
from atoll.drivers.network import http1
from atoll.drivers.network.http1 import Field, HttpError, Response
from atoll.drivers.network.http1_decoding import BodyDecoder

_WHOLE_BYTES = 64 << 10
"""Of a text that is searched for real values as a whole, so that its length can be said before."""
_MOST_HEAD_BYTES = 2 * http1.MAX_HEAD_BYTES
"""With tokens in the place of real values."""
_REFUSAL_BYTES = 64 << 10
"""Of a response that may not be passed on."""
_TEXT = re.compile(rb"^text/|json|xml|html|javascript|yaml|urlencoded")
_SWITCHED, _NO_CONTENT, _PARTIAL, _UNCHANGED, _QUOTA_USED_UP = 101, 204, 206, 304, 429
_DROPPED = frozenset({
    b"set-cookie", b"set-cookie2", b"alt-svc", b"trailer", b"content-length", b"transfer-encoding",
})  # fmt: skip
"""A session cookie would be a real credential inside the capsule; an alternative service would be
asked without the broker."""


class CutShortError(OSError):
    """The response ended before its time."""


class Answer:
    """Reads one response and passes it on."""

    def __init__(
        self,
        client: ClientSide,
        server: Stream,
        request: ClientRequest,
        replaced: Sequence[tuple[str, str]],
        tap: TrafficTap | None,
    ) -> None:
        """`replaced` are pairs of real values and tokens. `tap` observes model traffic."""
        self._client, self._server, self._request = client, server, request
        self._replaced, self._tap = replaced, tap
        self.has_begun = False
        """Whether the client got the head of a response."""
        self.is_complete = False
        """Whether it got all of it."""
        self.received = 0

    async def run(self, *, is_repeatable: bool) -> float | None:
        """Returns the seconds after which the request is to be sent again, if it is repeatable and
        a quota is used up: then the client has got nothing.

        Raises Rejection, CutShortError, and OSError when the client has gone.
        """
        response = await self._read_head()
        if self._tap is not None:
            self._tap.response(response.status, response.fields)
        if self._replaced and _is_part(response):
            raise Rejection(502, "the server sent a part of a response that was not asked for")
        if response.status == _SWITCHED:
            await self._switch(response)
            return None
        body, refusal = BodyDecoder(response.framing(self._request.method)), b""
        if self._tap is not None and response.status == _QUOTA_USED_UP and is_repeatable:
            # Some vendors say in the body when the quota is reset.
            refusal = await self._read_refusal(body)
            wait_s = await self._tap.quota()
            if wait_s is not None:
                return wait_s
        await self._pass_on(response, body, refusal)
        return None

    async def _read_refusal(self, body: BodyDecoder) -> bytes:
        """The body of an error, or its beginning."""
        data = b""
        while len(data) < _REFUSAL_BYTES and (piece := await self._read(body)):
            data += piece
        return data

    async def _read_head(self) -> Response:
        """The first that is not interim."""
        try:
            while True:
                response = http1.parse_response(await self._server.read_head(IDLE_S))
                response.framing(self._request.method)
                if not response.is_interim:
                    return response
        except (TimeoutError, ValueError):
            raise Rejection(502, "the server sent no valid HTTP response") from None
        except (EOFError, OSError):
            raise Rejection(502, "the server closed the connection") from None

    async def _pass_on(self, response: Response, body: BodyDecoder, begun: bytes) -> None:
        """`begun` is what was read of the body before."""
        length = _length_of(response)
        is_bare = self._request.method == "HEAD" or response.status in (_NO_CONTENT, _UNCHANGED)
        has_body = not is_bare and length != 0
        is_concealed = has_body and self._is_concealable(response)
        concealer = Concealer(self._replaced if is_concealed else ())
        held = b""
        async with aclosing(self._pieces(body, begun, concealer)) as pieces:
            if is_concealed:
                is_short = length is not None and length <= _WHOLE_BYTES
                length = None
                if is_short:
                    held, is_all = await _collect(pieces)
                    if is_all:
                        length, has_body = len(held), bool(held)
            await self._begin(response, length, has_body=has_body)
            await self._send_on(held)
            async for piece in pieces:
                await self._send_on(piece)
        await self._client.end()
        self.is_complete = True

    async def _pieces(
        self, body: BodyDecoder, data: bytes, concealer: Concealer
    ) -> AsyncGenerator[bytes]:
        """What the client gets, in small pieces; `data` was read before."""
        while data or (data := await self._read(body)):
            for at in range(0, len(data), concealer.piece_bytes):
                yield concealer.feed(data[at : at + concealer.piece_bytes])
                await asyncio.sleep(0)
            data = b""
        yield concealer.flush()

    async def _send_on(self, data: bytes) -> None:
        if data:
            await self._client.send(data)

    async def _begin(self, response: Response, length: int | None, *, has_body: bool) -> None:
        fields = self._fields(response)
        if sum(len(name) + len(value) for name, value in fields) > _MOST_HEAD_BYTES:
            raise Rejection(502, "the head of the server's response is too long")
        self.has_begun = True
        await self._client.begin(
            ResponseHead(response.status, self._reason(response), fields, length, has_body)
        )

    def _reason(self, response: Response) -> bytes:
        return conceal(response.reason, self._replaced)

    def _fields(self, response: Response) -> tuple[Field, ...]:
        kept = (f for f in http1.end_to_end(response.fields) if f[0].lower() not in _DROPPED)
        return tuple((n, conceal(v, self._replaced)) for n, v in kept)

    def _is_concealable(self, response: Response) -> bool:
        """Whether it is a text that could repeat a real value."""
        if not self._replaced:
            return False
        kinds = [
            value.lower() for name, value in response.fields if name.lower() == b"content-type"
        ]
        is_coded = any(
            name.lower() == b"content-encoding" and value.lower() != b"identity"
            for name, value in response.fields
        )
        return not is_coded and (not kinds or _TEXT.search(kinds[0]) is not None)

    async def _read(self, body: BodyDecoder) -> bytes:
        """The next piece of the body's content; nothing at its end."""
        while not body.is_over:
            if not self._server.buffer and not await self._fill():
                if body.is_unbounded:
                    break
                raise CutShortError("the server's response was cut short")
            try:
                taken, payload = body.feed(bytes(self._server.buffer))
            except HttpError:
                raise CutShortError("the server's response is malformed") from None
            self._server.take(taken)
            self.received += taken
            if payload:
                if self._tap is not None:
                    self._tap.data(payload)
                return payload
        return b""

    async def _fill(self) -> bool:
        try:
            async with asyncio.timeout(IDLE_S):
                return await self._server.fill()
        except OSError:
            raise CutShortError("the server's response was cut short") from None

    async def _switch(self, response: Response) -> None:
        """Passes a WebSocket on until either side ends it."""
        if not self._request.upgrade:
            raise Rejection(502, "the server switches to a protocol that was not requested")
        self.has_begun = True
        fields = (
            *self._fields(response),
            (b"Connection", b"Upgrade"),
            (b"Upgrade", self._request.upgrade),
        )
        head = ResponseHead(_SWITCHED, self._reason(response), fields, None, has_body=False)
        client = await self._client.switch(head)
        there = asyncio.create_task(self._pump(client, self._server, is_down=False))
        back = asyncio.create_task(self._pump(self._server, client, is_down=True))
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (there, back):
                task.cancel()
            # Their errors are the end of the connection.
            await asyncio.gather(there, back, return_exceptions=True)
        self.is_complete = True

    async def _pump(self, source: Stream, target: Stream, *, is_down: bool) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(IDLE_S) as idle:
            while source.buffer or await source.fill():
                data = source.take()
                # It may be held for longer than a connection may be idle.
                idle.reschedule(None)
                if not await self._observe(data, is_down=is_down):
                    return
                idle.reschedule(loop.time() + IDLE_S)
                await target.send(data)
                idle.reschedule(loop.time() + IDLE_S)

    async def _observe(self, data: bytes, *, is_down: bool) -> bool:
        """Bytes of a WebSocket; returns when they may be passed on, or False if they may not."""
        if is_down:
            self.received += len(data)
        if self._tap is None:
            return True
        if not is_down:
            await self._tap.frames_from_client(data)
            return True
        self._tap.frames_from_server(data)
        wait_s = self._tap.quota_of_frames()
        if wait_s is not None:
            await asyncio.sleep(wait_s)
        return wait_s is None


async def _collect(pieces: AsyncGenerator[bytes]) -> tuple[bytes, bool]:
    """The pieces of a short text, and whether that is all: it may have become a longer one."""
    held = bytearray()
    async for piece in pieces:
        held += piece
        if len(held) > _WHOLE_BYTES:
            return bytes(held), False
    return bytes(held), True


def _is_part(response: Response) -> bool:
    kinds = [v.lower() for name, v in response.fields if name.lower() == b"content-type"]
    is_multipart = any(kind.startswith(b"multipart/byteranges") for kind in kinds)
    return response.status == _PARTIAL or is_multipart


def _length_of(response: Response) -> int | None:
    values = [value for name, value in response.fields if name.lower() == b"content-length"]
    return int(values[0]) if values and values[0].isdigit() else None
