"""The proxy that a capsule has on its own loopback: HTTP, CONNECT and SOCKS5 on one port."""

from __future__ import annotations

import asyncio

from atoll.daemon.egress import answers, exchanges
from atoll.daemon.egress.exchanges import HEAD_S
from atoll.daemon.egress.reaching import Refusal, Way
from atoll.daemon.egress.streams import Stream
from atoll.daemon.egress.tunnels import run_tunnel
from atoll.daemon.egress.world import UnreachableError
from atoll.drivers.network import socks
from atoll.model.egress import Destination

_GRANTED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_NOT_A_PROXY_REQUEST = (
    "this is a proxy: it takes `http://HOST/PATH` and CONNECT, and no page is found here"
)


async def serve_proxy(way: Way, client: Stream) -> None:
    """One connection, told apart by its first byte. Leaves the socket to the caller."""
    if not await client.find_start(HEAD_S):
        return
    if client.buffer[0] == socks.VERSION:
        await _serve_socks(way, client)
    elif client.buffer[0] == socks.OLD_VERSION:
        way.journal.note(
            via="socks", place="", port=0, allowed=False, why="SOCKS4 is not spoken here"
        )
    else:
        await _serve_http(way, client)


async def _serve_http(way: Way, client: Stream) -> None:
    goes_on = True
    while goes_on and (request := await exchanges.find_request(client)):
        if request.target is None:
            await client.send(answers.render_text(answers.BAD_REQUEST, _NOT_A_PROXY_REQUEST))
            return
        if request.is_connect:
            await _connect(way, client, request.target, request.host)
            return
        goes_on = await exchanges.pass_on(way, client, request, request.target, "http")


async def _connect(way: Way, client: Stream, wanted: Destination, host: Destination | None) -> None:
    if host is not None and host.place != wanted.place:
        text = "`Host` names another place than CONNECT"
        await client.send(answers.render_text(answers.BAD_REQUEST, text))
        return
    try:
        await run_tunnel(way, client, wanted, via="connect", granted=_GRANTED)
    except Refusal as refusal:
        way.note_refusal("connect", refusal)
        text = answers.render_refusal(way.capsule, refusal)
        await client.send(answers.render_text(answers.FORBIDDEN, text))
    except UnreachableError as error:
        way.note_failure("connect", wanted, error)
        text = f"`{wanted.place}`: {error}"
        await client.send(answers.render_text(answers.BAD_GATEWAY, text))


async def _serve_socks(way: Way, client: Stream) -> None:
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
        way.journal.note(via="socks", place="", port=0, allowed=False, why=str(error))
        await client.send(socks.render_answer(socks.FORBIDDEN))
        return
    wanted, size = asked
    client.take(size)
    try:
        await run_tunnel(way, client, wanted, via="socks", granted=socks.render_answer(socks.DONE))
    except Refusal as refusal:
        way.note_refusal("socks", refusal)
        await client.send(socks.render_answer(socks.FORBIDDEN))
    except UnreachableError as error:
        way.note_failure("socks", wanted, error)
        await client.send(socks.render_answer(socks.UNREACHABLE))
