"""Connections of programs that know no proxy, which the kernel led here instead.

The kernel still knows where they wanted to go. An address that stands in for a name is that name
again; any other is judged as an address.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct

from atoll.daemon.egress import answers
from atoll.daemon.egress.reaching import Refusal, Way
from atoll.daemon.egress.standins import RANGE, StandIns
from atoll.daemon.egress.streams import Stream
from atoll.daemon.egress.tunnels import run_tunnel
from atoll.daemon.egress.world import UnreachableError
from atoll.drivers.network import heads
from atoll.model.egress import Destination

_ORIGINAL = 80
"""SO_ORIGINAL_DST, and its like for IPv6."""
_V4 = struct.Struct(">2xH4s8x")
_V6 = struct.Struct(">2xH4x16s4x")
_SPEAKS_S = 1.0
"""How long somebody who is refused has to show that he speaks HTTP, and would read a text."""


def original_destination(sock: socket.socket) -> Destination:
    """Where a connection wanted to go. OSError when the kernel does not know."""
    if sock.family == socket.AF_INET:
        port, packed = _V4.unpack(sock.getsockopt(socket.SOL_IP, _ORIGINAL, _V4.size))
        return Destination(ipaddress.IPv4Address(packed), port)
    port, packed = _V6.unpack(sock.getsockopt(socket.IPPROTO_IPV6, _ORIGINAL, _V6.size))
    return Destination(ipaddress.IPv6Address(packed), port)


async def serve_caught(way: Way, stand_ins: StandIns, client: Stream) -> None:
    """One connection. Leaves the socket to the caller."""
    found = original_destination(client.sock)
    name = None if isinstance(found.place, str) else stand_ins.find_name(found.place)
    wanted = found if name is None else Destination(name, found.port)
    try:
        with stand_ins.held(name) if name else contextlib.nullcontext():
            if name is None and found.place in RANGE:
                raise Refusal.because(found, "this address stands for no name any more")
            await run_tunnel(way, client, wanted, via="caught")
    except Refusal as refusal:
        way.note_refusal("caught", refusal)
        text = answers.render_refusal(way.capsule, refusal)
        await _tell(client, answers.render_text(answers.FORBIDDEN, text))
    except UnreachableError as error:
        way.note_failure("caught", wanted, error)
        text = f"`{wanted.place}`: {error}"
        await _tell(client, answers.render_text(answers.BAD_GATEWAY, text))


async def _tell(client: Stream, text: bytes) -> None:
    """Somebody who speaks HTTP reads a text; everybody else sees the connection break."""
    is_http = False
    if await client.find_start(_SPEAKS_S) and client.buffer[:1].isalpha():
        with contextlib.suppress(ValueError):
            head = await client.read_past(heads.END, most=heads.MOST_BYTES, timeout_s=_SPEAKS_S)
            heads.parse_request(head)
            is_http = True
    if is_http:
        await client.send(text)
    else:
        client.reset()
