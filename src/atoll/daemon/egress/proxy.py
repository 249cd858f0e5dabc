"""The proxy that a capsule has on its own loopback: HTTP, CONNECT and SOCKS5 on one port."""

from __future__ import annotations

import asyncio

from atoll.daemon.egress import http_requests
from atoll.daemon.egress.dialer import Dialer, Refusal
from atoll.daemon.egress.host_network import UnreachableError
from atoll.daemon.egress.http_requests import HEAD_S
from atoll.daemon.egress.tunnels import run_tunnel
from atoll.daemon.streams import Stream
from atoll.drivers.network import socks
from atoll.model.egress import Destination

BROKER_BASE = "/broker/"
"""Requests below it are for the broker: the base URLs of brokered secrets."""
_GRANTED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_NOT_A_PROXY_REQUEST = (
    "this is a proxy: it accepts `http://HOST/PATH` and CONNECT, and serves no pages"
)


async def serve_proxy(dialer: Dialer, client: Stream) -> None:
    """One connection, whose protocol its first byte shows. The caller closes the socket."""
    if not await client.find_start(HEAD_S):
        return
    if client.buffer[0] == socks.VERSION:
        await _serve_socks(dialer, client)
    elif client.buffer[0] == socks.OLD_VERSION:
        dialer.journal.note(
            via="socks", place="", port=0, allowed=False, why="SOCKS4 is not supported"
        )
    else:
        await _serve_http(dialer, client)


async def _serve_http(dialer: Dialer, client: Stream) -> None:
    goes_on = True
    while goes_on and (request := await http_requests.find_request(client)):
        if request.authority is None:
            if dialer.broker is not None and request.path.startswith(BROKER_BASE):
                goes_on = await dialer.broker.serve_plain(dialer, client, request)
                continue
            await client.send(
                http_requests.render_text(http_requests.BAD_REQUEST, _NOT_A_PROXY_REQUEST)
            )
            return
        if request.is_connect:
            await _connect(dialer, client, request.authority, request.host)
            return
        goes_on = await http_requests.pass_on(dialer, client, request, request.authority, "http")


async def _connect(
    dialer: Dialer, client: Stream, wanted: Destination, host: Destination | None
) -> None:
    if host is not None and host.place != wanted.place:
        text = "`Host` differs from the target of CONNECT"
        await client.send(http_requests.render_text(http_requests.BAD_REQUEST, text))
        return
    try:
        await run_tunnel(dialer, client, wanted, via="connect", established=_GRANTED)
    except Refusal as refusal:
        dialer.note_refusal("connect", refusal)
        text = http_requests.render_refusal(dialer.capsule, refusal)
        await client.send(http_requests.render_text(http_requests.FORBIDDEN, text))
    except UnreachableError as error:
        dialer.note_failure("connect", wanted, error)
        text = f"`{wanted.place}`: {error}"
        await client.send(http_requests.render_text(http_requests.BAD_GATEWAY, text))


async def _serve_socks(dialer: Dialer, client: Stream) -> None:
    try:
        async with asyncio.timeout(HEAD_S):
            while (greeting := socks.find_greeting(bytes(client.buffer))) is None:
                if not await client.fill():
                    return
            is_welcome, size = greeting
            client.take(size)
            await client.send(socks.GREETED if is_welcome else socks.NOT_GREETED)
            if not is_welcome:
                return
            while (asked := socks.find_request(bytes(client.buffer))) is None:
                if not await client.fill():
                    return
    except socks.UnknownCommandError:
        await client.send(socks.render_answer(socks.UNKNOWN_COMMAND))
        return
    except ValueError as error:
        dialer.journal.note(via="socks", place="", port=0, allowed=False, why=str(error))
        await client.send(socks.render_answer(socks.FORBIDDEN))
        return
    wanted, size = asked
    client.take(size)
    try:
        await run_tunnel(
            dialer, client, wanted, via="socks", established=socks.render_answer(socks.DONE)
        )
    except Refusal as refusal:
        dialer.note_refusal("socks", refusal)
        await client.send(socks.render_answer(socks.FORBIDDEN))
    except UnreachableError as error:
        dialer.note_failure("socks", wanted, error)
        await client.send(socks.render_answer(socks.UNREACHABLE))
