"""SOCKS5 without a password, and of its commands only CONNECT. Older versions are refused.

Nothing here does I/O; everything raises ValueError and nothing else.
"""

from __future__ import annotations

import ipaddress
import struct

from atoll.model.egress import Destination, parse_place

VERSION = 5
OLD_VERSION = 4
GREETED, NOT_GREETED = b"\5\0", b"\5\xff"
_CONNECT = 1
_V4, _NAME, _V6 = 1, 3, 4
_ADDRESS_BYTES = {_V4: 4, _V6: 16}

DONE, FAILED, FORBIDDEN, UNREACHABLE, REFUSED, UNKNOWN_COMMAND = 0, 1, 2, 4, 5, 7


def find_greeting(data: bytes) -> tuple[bool, int] | None:
    """Whether it can do without a password, and how many bytes it took. None: more is needed."""
    if data and data[0] != VERSION:
        raise ValueError("not SOCKS5")
    if len(data) < 2 or len(data) < 2 + data[1]:
        return None
    return 0 in data[2 : 2 + data[1]], 2 + data[1]


def find_request(data: bytes) -> tuple[Destination, int] | None:
    """The destination, and how many bytes the request took. None: more is needed."""
    if len(data) < 5:
        return None
    version, command, reserved, kind, size = data[:5]
    if version != VERSION or reserved:
        raise ValueError("not SOCKS5")
    if command != _CONNECT:
        raise UnknownCommandError("only CONNECT is supported")
    if kind not in (_V4, _NAME, _V6):
        raise ValueError("an unknown address type")
    start, end = (5, 5 + size) if kind == _NAME else (4, 4 + _ADDRESS_BYTES[kind])
    if len(data) < end + 2:
        return None
    place, (port,) = data[start:end], struct.unpack_from(">H", data, end)
    if not port:
        raise ValueError("is not a port")
    return _destination(kind, place, port), end + 2


def _destination(kind: int, place: bytes, port: int) -> Destination:
    if kind == _V4:
        return Destination(ipaddress.IPv4Address(place), port)
    if kind == _V6:
        return Destination(ipaddress.IPv6Address(place), port)
    try:
        text = place.decode("ascii")
    except UnicodeDecodeError:
        raise ValueError("is not in ASCII") from None
    # Many programs put an address that they were given as text where a name belongs.
    return parse_place(text, port)


def render_answer(code: int) -> bytes:
    return struct.pack(">BBBB4xH", VERSION, code, 0, _V4, 0)


class UnknownCommandError(ValueError):
    """BIND, UDP ASSOCIATE, and what is none at all."""
