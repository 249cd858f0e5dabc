"""Requests in plain HTTP, each judged for itself, and the responses to them.

Each request has a connection to its server of its own, which ends with the response; towards the
client a connection lives on as long as the bodies have a length. Of the protocols that a
connection can be upgraded to, only WebSocket is passed on: others would let a client name a
different host behind the one that was judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from atoll.daemon.carrying import Counts, carry
from atoll.daemon.egress import answers
from atoll.daemon.egress.reaching import Reached, Refusal, Way
from atoll.daemon.egress.streams import Stream
from atoll.daemon.egress.world import UnreachableError
from atoll.drivers.network import heads
from atoll.drivers.network.bodies import Endless, body_of
from atoll.drivers.network.heads import Request, Response
from atoll.model.egress import Destination

HEAD_S = 15.0
IDLE_S = 3600.0
_KEPT_S = 120.0
_TLS_PORT = 443


async def find_request(client: Stream, wait_s: float = _KEPT_S) -> Request | None:
    """The next request. None when there is none, or none that can be understood: then it was
    answered.
    """
    if not await client.find_start(wait_s):
        return None
    try:
        head = await client.read_past(heads.END, most=heads.MOST_BYTES, timeout_s=HEAD_S)
    except ValueError as error:
        await client.send(answers.render_text(answers.BAD_REQUEST, f"the head {error}"))
        return None
    try:
        return heads.parse_request(head)
    except ValueError as error:
        await client.send(answers.render_text(answers.BAD_REQUEST, str(error)))
        return None


async def serve_fixed(way: Way, client: Stream, wanted: Destination, via: str) -> None:
    """Requests on a connection that was made to one place only."""
    request = await find_request(client, HEAD_S)
    while request is not None:
        if request.is_connect:
            await client.send(answers.render_text(answers.BAD_REQUEST, "this is not a proxy"))
            return
        if not await pass_on(way, client, request, wanted, via):
            return
        request = await find_request(client)


async def pass_on(
    way: Way, client: Stream, request: Request, wanted: Destination, via: str
) -> bool:
    """One request and its response. Whether the client may go on with another."""
    await way.share.turns.wait()
    try:
        _require_agreement(way, request, wanted)
        reached = await way.reach(wanted, plainly=True)
    except Refusal as refusal:
        way.note_refusal(via, refusal)
        text = answers.render_refusal(way.capsule, refusal)
        await client.send(answers.render_text(answers.FORBIDDEN, text, method=request.method))
        return False
    except UnreachableError as error:
        way.note_failure(via, wanted, error)
        text = f"`{wanted.place}`: {error}"
        await client.send(answers.render_text(answers.BAD_GATEWAY, text, method=request.method))
        return False
    with way.noted(via, wanted, reached) as counts, contextlib.closing(reached.stream.sock):
        return await _Exchange(client, reached, request, wanted, counts).run()


def _require_agreement(way: Way, request: Request, wanted: Destination) -> None:
    """Whoever the request names is the one that it goes to.

    Behind a bare address, which was allowed as such, any name that is allowed itself may be meant.
    """
    if wanted.port == _TLS_PORT:
        raise Refusal.because(wanted, "port 443 is for TLS only")
    for named in (request.target, request.host):
        if named is None or named == wanted:
            continue
        is_bare = request.target != wanted and not isinstance(wanted.place, str)
        if not is_bare or named.port != wanted.port:
            raise Refusal.because(named, f"the request names `{named.text}`, not `{wanted.text}`")
        way.require(named)


class _BadResponseError(Exception):
    """The server's answer cannot be passed on, and nothing of it was."""


class _CutShortError(Exception):
    """Something ended before its time."""

    def __init__(self, *, is_clean: bool = False) -> None:
        super().__init__()
        self.is_clean = is_clean
        """The other side closed in an orderly way."""


class _Exchange:
    def __init__(
        self,
        client: Stream,
        reached: Reached,
        request: Request,
        wanted: Destination,
        counts: Counts,
    ) -> None:
        self._client, self._server = client, reached.stream
        self._reached, self._request = reached, request
        self._wanted, self._counts = wanted, counts
        self._fault = ""
        """What is wrong with the request's body."""

    async def run(self) -> bool:
        upload = asyncio.create_task(self._upload())
        try:
            try:
                return await self._answer(upload)
            finally:
                # It ends without a word: what failed there is seen by whoever reads the response.
                upload.cancel()
                await asyncio.wait([upload])
        except _BadResponseError as error:
            status, text = answers.BAD_GATEWAY, f"`{self._wanted.place}` {error}"
            if self._fault:
                # The connection to the server was ended because of it.
                status, text = answers.BAD_REQUEST, f"the body of the request: {self._fault}"
            await self._client.send(answers.render_text(status, text))
        except _CutShortError:
            # What was sent shall look whole to nobody.
            self._client.reset()
        return False

    async def _answer(self, upload: asyncio.Task[None]) -> bool:
        response = await self._read_response()
        if response.status == 101:
            await self._upgrade(response, upload)
            return False
        return await self._relay(response, is_sent=upload.done())

    def _head(self) -> bytes:
        request, upstream = self._request, self._reached.upstream
        named = request.host or request.target or self._wanted
        host = str(named.place) if named.port == heads.HTTP_PORT else named.text
        host = f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host
        fields = [(b"Host", host.encode())]
        fields += [f for f in heads.passed_on(request.fields) if f[0].lower() != b"host"]
        if request.upgrade:
            fields += [(b"Connection", b"Upgrade"), (b"Upgrade", request.upgrade)]
        else:
            fields.append((b"Connection", b"close"))
        path = request.path
        if upstream is not None:
            fields += upstream.fields
            path = f"http://{self._wanted.text}{'' if path == '*' else path}"
        first = f"{request.method} {path} HTTP/1.{request.minor}"
        return heads.render(first.encode(), fields)

    async def _upload(self) -> None:
        """The request, with its body. When that breaks off, so does the connection to the server;
        when the server does not want it, its response tells.
        """
        body = body_of(self._request.framing)
        try:
            head = self._head()
            await self._server.send(head)
            self._counts.sent += len(head)
            while not body.is_over:
                await _fill(self._client)
                data = self._client.take(body.take(bytes(self._client.buffer)))
                await self._server.send(data)
                self._counts.sent += len(data)
                await asyncio.sleep(0)
        except (ValueError, _CutShortError) as error:
            self._fault = str(error)
            with contextlib.suppress(OSError):
                self._server.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    async def _read_response(self) -> Response:
        """The first that is not interim; those are passed on."""
        while True:
            try:
                head = await self._server.read_past(
                    heads.END, most=heads.MOST_BYTES, timeout_s=IDLE_S
                )
                response = heads.parse_response(head)
                response.framing(self._request.method)
            except OSError:
                raise _BadResponseError("broke the connection off") from None
            except ValueError:
                raise _BadResponseError("sent no proper response") from None
            if response.status == 407 and self._reached.upstream is not None:
                raise _BadResponseError("is behind the owner's own proxy, which refuses")
            if not response.is_interim:
                return response
            if self._request.minor:
                await self._client.send(_render(response, heads.passed_on(response.fields)))

    async def _relay(self, response: Response, *, is_sent: bool) -> bool:
        body = body_of(response.framing(self._request.method))
        is_endless = isinstance(body, Endless)
        goes_on = self._request.keeps_alive and not is_endless and is_sent
        ending = (b"Connection", b"keep-alive" if goes_on else b"close")
        await self._client.send(_render(response, [*heads.passed_on(response.fields), ending]))
        while not body.is_over:
            try:
                await _fill(self._server)
            except _CutShortError as error:
                if is_endless and error.is_clean:
                    break
                raise
            data = self._server.take()
            try:
                data = data[: body.take(data)]
            except ValueError:
                raise _CutShortError from None
            await self._client.send(data)
            self._counts.received += len(data)
            await asyncio.sleep(0)
        return goes_on

    async def _upgrade(self, response: Response, upload: asyncio.Task[None]) -> None:
        if not self._request.upgrade:
            raise _BadResponseError("goes over to a protocol that nobody asked for")
        await upload
        fields = heads.passed_on(response.fields)
        fields += [(b"Connection", b"Upgrade"), (b"Upgrade", self._request.upgrade)]
        await self._client.send(_render(response, fields) + self._server.take())
        await carry(
            self._client.sock,
            self._server.sock,
            first=self._client.take(),
            idle_s=IDLE_S,
            counts=self._counts,
        )


async def _fill(stream: Stream) -> None:
    """Has something in the buffer. Raises _CutShortError when nothing comes any more."""
    if stream.buffer:
        return
    try:
        async with asyncio.timeout(IDLE_S):
            is_more = await stream.fill()
    except OSError:
        raise _CutShortError from None
    if not is_more:
        raise _CutShortError(is_clean=True)


def _render(response: Response, fields: list[heads.Field]) -> bytes:
    first = b"HTTP/1.1 %d %s" % (response.status, response.reason)
    return heads.render(first, fields)
