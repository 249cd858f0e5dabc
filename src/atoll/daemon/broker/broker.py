"""The credential broker of one capsule.

TLS to a brokered host ends here: the capsule trusts a CA that is made for these hosts only. Each
request is checked against the grants as they are at that moment, gets the real values in place of
their placeholders, and is sent to the real server, whose certificate is verified.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from atoll.daemon.broker import admission, upstream
from atoll.daemon.broker.admission import ClientRequest, Permit, Rejection
from atoll.daemon.broker.client_side import ClientSide
from atoll.daemon.broker.exchange import Exchange, send_rejection
from atoll.daemon.broker.exchange_log import VIA
from atoll.daemon.broker.granted_secrets import GrantedSecrets, hosts_of
from atoll.daemon.broker.http1_client import Http1Client, read_request
from atoll.daemon.broker.leaf_certificates import LeafCertificates
from atoll.daemon.broker.open_requests import OpenRequests
from atoll.daemon.broker.substitution import (
    Substituted,
    TooManyPlaceholdersError,
    UnsafeValueError,
    substitute,
)
from atoll.daemon.broker.taps import TrafficMeter
from atoll.daemon.broker.tls_streams import H2, HandshakeError, ServerTrust, TlsStream
from atoll.daemon.egress.dialer import Dialer, Refusal
from atoll.daemon.egress.egress_log_writer import Journal
from atoll.daemon.egress.host_network import UnreachableError
from atoll.daemon.egress.http_requests import HEAD_S
from atoll.daemon.egress.proxy import BROKER_BASE
from atoll.daemon.streams import Stream
from atoll.drivers.network import http1
from atoll.drivers.network.http1 import HttpError, Request
from atoll.model.errors import StateError
from atoll.model.names import printable

_PORT = 443
_KEPT_S = 120.0
_MOST_CONNECTIONS = 256
"""Through TLS, at once: each takes more memory than a tunnel."""
_MOST_BUFFERED_BYTES = 128 << 20
"""Of the bodies of model requests that are under way."""
_SHOWN_CHARACTERS = 80


class Broker:
    """A `CredentialBroker`."""

    def __init__(
        self, secrets: GrantedSecrets, directory: Path, trust: ServerTrust, meter: TrafficMeter
    ) -> None:
        """`directory` is the capsule's, to which only the owner can write."""
        self.secrets = secrets
        self.trust = trust
        self.meter = meter
        self.open_requests = OpenRequests()
        self._leaves = LeafCertificates(directory)
        self._connections = 0
        self._buffered_bytes = 0

    def close(self) -> None:
        self.secrets.close()

    def serves(self, name: str) -> bool:
        return bool(self.secrets.find_for(name))

    def reserve(self, size: int) -> bool:
        """Counts bytes that are buffered, or with a negative size no longer are."""
        self._buffered_bytes += size
        return self._buffered_bytes < _MOST_BUFFERED_BYTES

    async def serve_tls(self, dialer: Dialer, client: Stream, name: str) -> None:
        if self._connections >= _MOST_CONNECTIONS:
            _note_failure(dialer.journal, name, "too many brokered connections at once")
            return
        self._connections += 1
        try:
            await self._serve_tls(dialer, client, name)
        except HandshakeError as error:
            _note_failure(dialer.journal, name, str(error))
        finally:
            self._connections -= 1

    async def _serve_tls(self, dialer: Dialer, client: Stream, name: str) -> None:
        context = self._leaves.find(name)
        if context is None:
            hosts = {host for secret in self.secrets.find() for host in hosts_of(secret)} | {name}
            try:
                context = await asyncio.to_thread(self._leaves.make, name, hosts)
            except (StateError, OSError) as error:
                raise HandshakeError(f"no certificate can be issued: {error}") from None
        stream = TlsStream(client, context, server_side=True)
        await stream.shake_hands()
        place = BrokeredPlace(self, dialer, name)
        if stream.protocol == H2:
            await _serve_http2(place, stream)
        else:
            await _serve_http1(place, stream)
        await stream.say_goodbye()

    async def serve_plain(self, dialer: Dialer, client: Stream, request: Request) -> bool:
        """A request below `/broker/NAME/` on the proxy's own port: the base URL of a secret."""
        await dialer.share.turns.wait()
        side = Http1Client(client, request)
        name = request.target.decode("latin-1").removeprefix(BROKER_BASE)
        name = name.partition("?")[0].partition("/")[0]
        found = next((s for s in self.secrets.find() if s.grant.secret.name == name), None)
        if found is None:
            shown = printable(name[:_SHOWN_CHARACTERS])
            message = f"no secret `{shown}` is brokered for this capsule"
            _note_refusal(dialer.journal, "(any)", message)
            await send_rejection(side, request.method, Rejection(403, message))
        else:
            place = BrokeredPlace(self, dialer, hosts_of(found)[0], only=name)
            await place.serve_http1(side, request, prefix=f"{BROKER_BASE}{name}")
        return side.goes_on


class BrokeredPlace(NamedTuple):
    """One host, as the connections of a capsule reach it: an `ExchangePlace`."""

    broker: Broker
    dialer: Dialer
    host: str
    only: str = ""
    """The one secret that may be used, if the client has named it by its base URL."""

    @property
    def journal(self) -> Journal:
        return self.dialer.journal

    @property
    def meter(self) -> TrafficMeter:
        return self.broker.meter

    def reserve(self, size: int) -> bool:
        return self.broker.reserve(size)

    async def serve(self, client: ClientSide, request: Request, *, prefix: str = "") -> None:
        """One request. Raises OSError when the connection cannot be used any more."""
        try:
            if not self.only:
                admission.require_host(request, self.host)
            parsed = admission.parse_client_request(request, path_prefix=prefix)
        except Rejection as rejection:
            _note_refusal(self.journal, self.host, rejection.logged)
            await send_rejection(client, request.method, rejection)
        else:
            await Exchange(self, client, parsed).run()

    async def serve_http1(self, client: ClientSide, request: Request, *, prefix: str = "") -> None:
        """As `serve`, unless too many requests are under way: HTTP/2 counts its own."""
        open_requests = self.broker.open_requests
        header_bytes = sum(len(name) + len(value) for name, value in request.fields)
        if not open_requests.enter(header_bytes):
            message = "too many requests to brokered hosts are under way"
            _note_refusal(self.journal, self.host, message)
            await send_rejection(client, request.method, Rejection(503, message))
            return
        try:
            await self.serve(client, request, prefix=prefix)
        finally:
            open_requests.leave(header_bytes)

    async def refuse(self, client: ClientSide, error: HttpError) -> None:
        """A request whose head is malformed."""
        rejection = Rejection(400, str(error))
        _note_refusal(self.journal, self.host, f"malformed request: {error}")
        await send_rejection(client, "GET", rejection)

    async def admit(self, request: ClientRequest) -> Permit:
        granted = self.broker.secrets.find_for(self.host)
        if self.only:
            granted = tuple(s for s in granted if s.grant.secret.name == self.only)
        try:
            return admission.admit(request, self.host, granted)
        except Rejection as rejection:
            if rejection.secret is not None:
                why = f"{request.shown}: {rejection.logged}"
                await self.broker.secrets.note_refused(rejection.secret, why)
            raise

    def is_granted(self, permit: Permit) -> bool:
        known = self.broker.secrets.watched_ids()
        if permit.secrets:
            return all(secret.grant.secret.id in known for secret in permit.secrets)
        return any(secret.grant.secret.id in known for secret in permit.grants)

    async def substitute(self, permit: Permit, request: ClientRequest) -> Substituted:
        found = [each for s in permit.secrets for each in await self.broker.secrets.read(s)]
        try:
            return substitute(request.fields, request.query, found)
        except TooManyPlaceholdersError:
            raise Rejection(400, "the request has too many placeholders") from None
        except UnsafeValueError:
            names = ", ".join(f"`{secret.grant.secret.name}`" for secret in permit.secrets)
            message = f"the value of {names} has characters that a request cannot carry"
            raise Rejection(503, message) from None

    async def connect(self, permit: Permit) -> upstream.ServerConnection:
        try:
            place = upstream.server_place(self.host, permit.scope.upstream)
            return await upstream.connect(self.dialer, self.broker.trust, place)
        except Refusal as refusal:
            self.dialer.note_refusal(VIA, refusal)
            raise Rejection(403, refusal.shown.why, logged=refusal.verdict.why) from None
        except (UnreachableError, HandshakeError, ValueError) as error:
            raise Rejection(502, f"`{self.host}`: {error}") from None


async def _serve_http1(place: BrokeredPlace, stream: Stream) -> None:
    goes_on = True
    while goes_on:
        try:
            request = await read_request(stream, first_s=_KEPT_S, head_s=HEAD_S)
        except HttpError as error:
            _note_refusal(place.journal, place.host, f"malformed request: {error}")
            await stream.send(render_rejection(Rejection(400, str(error))))
            return
        if request is None:
            return
        await place.dialer.share.turns.wait()
        client = Http1Client(stream, request)
        await place.serve_http1(client, request)
        goes_on = client.goes_on


async def _serve_http2(place: BrokeredPlace, stream: Stream) -> None:
    from atoll.daemon.broker.http2_client import Http2Connection  # noqa: PLC0415 - h2 takes memory

    async def serve(client: ClientSide, request: Request) -> None:
        await place.serve(client, request)

    turn = place.dialer.share.turns.wait
    open_requests = place.broker.open_requests
    await Http2Connection(stream, serve, place.refuse, turn=turn, open_requests=open_requests).run()


def render_rejection(rejection: Rejection) -> bytes:
    """A whole response, after which the connection ends."""
    body = rejection.body()
    fields = [
        (b"Content-Type", b"application/json"),
        (b"Content-Length", b"%d" % len(body)),
        (b"Connection", b"close"),
    ]
    return http1.render(b"HTTP/1.1 %d %b" % (rejection.status, rejection.reason), fields) + body


def _note_refusal(journal: Journal, host: str, why: str) -> None:
    journal.note(via=VIA, place=host, port=_PORT, allowed=False, why=why)


def _note_failure(journal: Journal, host: str, why: str) -> None:
    journal.note(via=VIA, place=host, port=_PORT, allowed=True, why=why, took_s=0.0, failed=True)
