"""Plain HTTP requests, each checked separately, and their responses.

Each request has its own connection to the server, which ends with the response; the client's
connection is kept open as long as bodies have a length. Of the protocols that a connection can be
upgraded to, only WebSocket is supported: others would let a client name a different host behind the
one that was checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from atoll.daemon.egress.dialer import Dialer, EgressConnection, Refusal
from atoll.daemon.egress.host_network import UnreachableError
from atoll.daemon.relay import Counts, relay
from atoll.daemon.streams import Stream
from atoll.drivers.network import http1
from atoll.drivers.network.http1 import ProxyRequest, Response, UnboundedBody, body_of
from atoll.model.egress import Destination

_REASONS = {400: b"Bad Request", 403: b"Forbidden", 502: b"Bad Gateway"}
BAD_REQUEST, FORBIDDEN, BAD_GATEWAY = 400, 403, 502
HEAD_S = 15.0
IDLE_S = 3600.0
_KEPT_S = 120.0
_TLS_PORT = 443


def render_text(status: int, text: str, *, method: str = "") -> bytes:
    """A whole response, after which the connection ends."""
    body = f"atoll: {text}\n".encode()
    first = b"HTTP/1.1 %d %s" % (status, _REASONS[status])
    fields = [
        (b"Content-Type", b"text/plain; charset=utf-8"),
        (b"Content-Length", b"%d" % len(body)),
        (b"Connection", b"close"),
    ]
    return http1.render(first, fields) + (b"" if method == "HEAD" else body)


def render_refusal(capsule: str, refusal: Refusal) -> str:
    """The reason, and the command that allows it, if there is one."""
    why, ask = refusal.shown.why, refusal.shown.ask
    return f"{why}\nthe owner can allow it: atoll allow {capsule} {ask}" if ask else why


async def find_request(client: Stream, wait_s: float = _KEPT_S) -> ProxyRequest | None:
    """The next request. None when there is none, or when it is malformed: then it was answered."""
    if not await client.find_start(wait_s):
        return None
    try:
        return http1.parse_proxy_request(await client.read_head(HEAD_S))
    except (EOFError, TimeoutError, ValueError) as error:
        await client.send(render_text(BAD_REQUEST, str(error)))
        return None


async def serve_fixed(dialer: Dialer, client: Stream, wanted: Destination, via: str) -> None:
    """Requests on a connection to one destination."""
    request = await find_request(client, HEAD_S)
    while request is not None:
        if request.is_connect:
            await client.send(render_text(BAD_REQUEST, "this is not a proxy"))
            return
        if not await pass_on(dialer, client, request, wanted, via):
            return
        request = await find_request(client)


async def pass_on(
    dialer: Dialer, client: Stream, request: ProxyRequest, wanted: Destination, via: str
) -> bool:
    """Relays one request and its response. Returns whether the client may send another."""
    await dialer.share.turns.wait()
    try:
        _require_agreement(dialer, request, wanted)
        connection = await dialer.connect(wanted, plainly=True)
    except Refusal as refusal:
        dialer.note_refusal(via, refusal)
        text = render_refusal(dialer.capsule, refusal)
        await client.send(render_text(FORBIDDEN, text, method=request.method))
        return False
    except UnreachableError as error:
        dialer.note_failure(via, wanted, error)
        text = f"`{wanted.place}`: {error}"
        await client.send(render_text(BAD_GATEWAY, text, method=request.method))
        return False
    with (
        dialer.noted(via, wanted, connection) as counts,
        contextlib.closing(connection.stream.sock),
    ):
        return await _Exchange(client, connection, request, wanted, counts).run()


def _require_agreement(dialer: Dialer, request: ProxyRequest, wanted: Destination) -> None:
    """Raises Refusal unless the request names the destination that it is sent to.

    Behind a bare address, which was allowed as such, any allowed name is accepted.
    """
    if wanted.port == _TLS_PORT:
        raise Refusal.because(wanted, "port 443 is for TLS only")
    _require_unbrokered(dialer, wanted)
    for named in (request.authority, request.host):
        if named is None or named == wanted:
            continue
        is_bare = request.authority != wanted and not isinstance(wanted.place, str)
        if not is_bare or named.port != wanted.port:
            raise Refusal.because(named, f"the request names `{named.text}`, not `{wanted.text}`")
        dialer.require(named)
        _require_unbrokered(dialer, named)


def _require_unbrokered(dialer: Dialer, wanted: Destination) -> None:
    if dialer.find_broker(wanted.place):
        why = f"secrets for `{wanted.place}` are brokered over TLS only: use https://"
        raise Refusal.because(wanted, why)


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
        connection: EgressConnection,
        request: ProxyRequest,
        wanted: Destination,
        counts: Counts,
    ) -> None:
        self._client, self._server = client, connection.stream
        self._reached, self._request = connection, request
        self._wanted, self._counts = wanted, counts
        self._fault = ""
        """What is wrong with the request's body."""

    async def run(self) -> bool:
        upload = asyncio.create_task(self._upload())
        try:
            try:
                return await self._answer(upload)
            finally:
                # Its errors are ignored: the response shows them.
                upload.cancel()
                await asyncio.wait([upload])
        except _BadResponseError as error:
            status, text = BAD_GATEWAY, f"`{self._wanted.place}` {error}"
            if self._fault:
                # The connection to the server was ended because of it.
                status, text = (
                    BAD_REQUEST,
                    f"the body of the request: {self._fault}",
                )
            await self._client.send(render_text(status, text))
        except _CutShortError:
            # The client must not take what was sent for a whole response.
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
        named = request.host or request.authority or self._wanted
        host = str(named.place) if named.port == http1.HTTP_PORT else named.text
        host = f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host
        fields = [(b"Host", host.encode())]
        fields += [f for f in http1.end_to_end(request.fields) if f[0].lower() != b"host"]
        if request.upgrade:
            fields += [(b"Connection", b"Upgrade"), (b"Upgrade", request.upgrade)]
        else:
            fields.append((b"Connection", b"close"))
        path = request.path
        if upstream is not None:
            fields += upstream.fields
            path = f"http://{self._wanted.text}{'' if path == '*' else path}"
        first = f"{request.method} {path} HTTP/1.{request.minor}"
        return http1.render(first.encode(), fields)

    async def _upload(self) -> None:
        """The request, with its body. If the client breaks off, the connection to the server is
        closed; if the server rejects the body, its response shows it.
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
                response = http1.parse_response(await self._server.read_head(IDLE_S))
                response.framing(self._request.method)
            except (EOFError, TimeoutError, ValueError):
                raise _BadResponseError("sent no valid HTTP response") from None
            except OSError:
                raise _BadResponseError("closed the connection") from None
            if response.status == 407 and self._reached.upstream is not None:
                raise _BadResponseError("was refused by the owner's upstream proxy")
            if not response.is_interim:
                return response
            if self._request.minor:
                await self._client.send(_render(response, http1.end_to_end(response.fields)))

    async def _relay(self, response: Response, *, is_sent: bool) -> bool:
        body = body_of(response.framing(self._request.method))
        is_endless = isinstance(body, UnboundedBody)
        goes_on = self._request.keeps_alive and not is_endless and is_sent
        ending = (b"Connection", b"keep-alive" if goes_on else b"close")
        await self._client.send(_render(response, [*http1.end_to_end(response.fields), ending]))
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
            raise _BadResponseError("switches to a protocol that was not requested")
        await upload
        fields = http1.end_to_end(response.fields)
        fields += [(b"Connection", b"Upgrade"), (b"Upgrade", self._request.upgrade)]
        await self._client.send(_render(response, fields) + self._server.take())
        await relay(
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


def _render(response: Response, fields: list[http1.Field]) -> bytes:
    first = b"HTTP/1.1 %d %s" % (response.status, response.reason)
    return http1.render(first, fields)
