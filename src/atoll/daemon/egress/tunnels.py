"""Tunnels to one destination, from CONNECT, SOCKS5 and the transparent proxy.

What is spoken in them must fit the port: on 443 TLS, whose hello names the place that was asked
for; on 80 HTTP, each of whose requests does. On all other ports bytes are bytes. TLS to a host for
which the capsule has a brokered secret ends at the broker; all other TLS stays end to end.
"""

from __future__ import annotations

import asyncio
import contextlib

from atoll.daemon.egress import http_requests
from atoll.daemon.egress.dialer import Dialer, Refusal
from atoll.daemon.egress.http_requests import HEAD_S, IDLE_S
from atoll.daemon.relay import relay
from atoll.daemon.streams import Stream
from atoll.drivers.network import client_hello
from atoll.drivers.network.client_hello import Hello, HelloReader
from atoll.model.egress import Destination

_TLS_PORT, _HTTP_PORT = 443, 80


async def run_tunnel(
    dialer: Dialer, client: Stream, wanted: Destination, *, via: str, established: bytes = b""
) -> None:
    """Serves a tunnel until it ends; `established` is sent to the client once it may start.

    Raises Refusal or UnreachableError only before that.
    """
    dialer.require(wanted)
    if wanted.port == _HTTP_PORT:
        await client.send(established)
        await http_requests.serve_fixed(dialer, client, wanted, via)
        return
    if wanted.port == _TLS_PORT and dialer.find_broker(wanted.place):
        await client.send(established)
        await _broker(dialer, client, wanted, via)
        return
    connection = await dialer.connect(wanted)
    server = connection.stream
    with contextlib.closing(server.sock):
        await client.send(established)
        if wanted.port == _TLS_PORT:
            hello = await _find_hello(dialer, client, wanted, via)
            if hello is None:
                return
            if broker := dialer.find_broker(hello.name):
                # Behind an address that was allowed as such.
                assert hello.name is not None  # noqa: S101 - a broker serves names only
                server.sock.close()
                await broker.serve_tls(dialer, client, hello.name)
                return
        if server.buffer:
            await client.send(server.take())
        with dialer.noted(via, wanted, connection) as counts:
            await relay(client.sock, server.sock, first=client.take(), idle_s=IDLE_S, counts=counts)


async def _broker(dialer: Dialer, client: Stream, wanted: Destination, via: str) -> None:
    """TLS that ends here, to a brokered host."""
    hello = await _find_hello(dialer, client, wanted, via)
    broker = dialer.find_broker(wanted.place)
    if hello is None:
        return
    if broker is None:
        # The grant ended in this moment; nothing was sent yet.
        client.reset()
        return
    await broker.serve_tls(dialer, client, str(wanted.place))


async def _find_hello(
    dialer: Dialer, client: Stream, wanted: Destination, via: str
) -> Hello | None:
    """The ClientHello, if it names the allowed destination; if not, the client was refused."""
    try:
        hello = await _read_hello(client)
        require_agreement(dialer, hello, wanted)
    except ValueError as error:
        refusal = Refusal.because(wanted, f"port 443 is for TLS only: {error}")
    except Refusal as found:
        refusal = found
        await client.send(client_hello.ALERT_DENIED)
    else:
        return hello
    dialer.note_refusal(via, refusal)
    return None


async def _read_hello(client: Stream) -> Hello:
    """The ClientHello, which stays in the buffer. ValueError when it is malformed or late."""
    reader, fed = HelloReader(), 0
    try:
        async with asyncio.timeout(HEAD_S):
            while True:
                found = reader.feed(bytes(client.buffer[fed:]))
                fed = len(client.buffer)
                if found is not None:
                    return found
                if not await client.fill():
                    raise ValueError("the connection ended before the ClientHello")
    except TimeoutError:
        raise ValueError("the ClientHello took too long") from None


def require_agreement(dialer: Dialer, found: Hello, wanted: Destination) -> None:
    """Raises Refusal when the TLS server name is missing, or is not the requested one.

    Behind a bare address, which was allowed as such, any allowed name is accepted, or none. An
    encrypted ClientHello could contain any name, so behind an address it is refused; for a
    requested name its outer name counts.
    """
    if isinstance(wanted.place, str):
        if found.name != wanted.place:
            said = f"`{found.name}`" if found.name else "missing"
            raise Refusal.because(wanted, f"the TLS server name is {said}, not `{wanted.place}`")
        return
    if found.has_ech:
        raise Refusal.because(wanted, f"the TLS server name for {wanted.place} is encrypted")
    if found.name is not None:
        dialer.require(Destination(found.name, wanted.port))
