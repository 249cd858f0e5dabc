"""Transparent proxy: connections that the kernel redirected here.

The kernel knows their original destination. A synthetic address is mapped back to its name; the
policy checks any other as an address.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct

from atoll.daemon.egress import http_requests
from atoll.daemon.egress.dialer import Dialer, Refusal
from atoll.daemon.egress.host_network import UnreachableError
from atoll.daemon.egress.synthetic_addresses import RANGE, SyntheticAddresses
from atoll.daemon.egress.tunnels import run_tunnel
from atoll.daemon.streams import Stream
from atoll.drivers.network import http1
from atoll.model.egress import Destination

_ORIGINAL = 80
"""SO_ORIGINAL_DST, and its equivalent for IPv6."""
_V4 = struct.Struct(">2xH4s8x")
_V6 = struct.Struct(">2xH4x16s4x")
_SPEAKS_S = 1.0
"""How long a refused client may take to send an HTTP request, which gets a text as answer."""


def original_destination(sock: socket.socket) -> Destination:
    """Where a connection wanted to go. OSError when the kernel does not know."""
    if sock.family == socket.AF_INET:
        port, packed = _V4.unpack(sock.getsockopt(socket.SOL_IP, _ORIGINAL, _V4.size))
        return Destination(ipaddress.IPv4Address(packed), port)
    port, packed = _V6.unpack(sock.getsockopt(socket.IPPROTO_IPV6, _ORIGINAL, _V6.size))
    return Destination(ipaddress.IPv6Address(packed), port)


async def serve_transparent(dialer: Dialer, synthetic: SyntheticAddresses, client: Stream) -> None:
    """One connection. The caller closes the socket."""
    found = original_destination(client.sock)
    name = None if isinstance(found.place, str) else synthetic.find_name(found.place)
    wanted = found if name is None else Destination(name, found.port)
    try:
        with synthetic.held(name) if name else contextlib.nullcontext():
            if name is None and found.place in RANGE:
                raise Refusal.because(
                    found, "this synthetic address is no longer assigned to a name"
                )
            await run_tunnel(dialer, client, wanted, via="caught")
    except Refusal as refusal:
        dialer.note_refusal("caught", refusal)
        text = http_requests.render_refusal(dialer.capsule, refusal)
        await _send_refusal(client, http_requests.render_text(http_requests.FORBIDDEN, text))
    except UnreachableError as error:
        dialer.note_failure("caught", wanted, error)
        text = f"`{wanted.place}`: {error}"
        await _send_refusal(client, http_requests.render_text(http_requests.BAD_GATEWAY, text))


async def _send_refusal(client: Stream, text: bytes) -> None:
    """Sends the text to an HTTP client, and resets any other connection."""
    is_http = False
    if await client.find_start(_SPEAKS_S) and client.buffer[:1].isalpha():
        with contextlib.suppress(EOFError, TimeoutError, ValueError):
            http1.parse_request(await client.read_head(_SPEAKS_S))
            is_http = True
    if is_http:
        await client.send(text)
    else:
        client.reset()
