"""The TLS ClientHello, and the server name that it requests in the clear.

A ClientHello may come in any number of records and pieces. Nothing here does I/O; everything raises
ValueError and nothing else. What a server could read differently is refused: a repeated name, a
list of several, trailing bytes.

A client that encrypts its hello (ECH) shows an outer name only. Browsers always send something
that looks like it, so it cannot be refused as such: the outer name counts. Since names are never
answered with the keys for it, real ECH needs a client that brought its own.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from atoll.model.egress import canonical_name

HANDSHAKE = 22
ALERT_DENIED = b"\x15\x03\x03\x00\x02\x02\x31"
"""Fatal: access denied."""
MOST_BYTES = 32_768
_RECORD_BYTES = 16_384
_CLIENT_HELLO = 1
_SERVER_NAME, _ECH = 0, 0xFE0D
_HOST_NAME = 0


class Hello(NamedTuple):
    name: str | None
    """In canonical form."""
    has_ech: bool


class HelloReader:
    """Takes the pieces of a stream as they come."""

    def __init__(self) -> None:
        self._records = bytearray()
        self._message = bytearray()
        self._taken = 0

    def feed(self, data: bytes) -> Hello | None:
        """The hello, once it is complete. Not to be called again after that, nor after a
        ValueError.
        """
        self._records += data
        self._taken += len(data)
        while (hello := self._read_record()) is None and self._has_record():
            pass
        if hello is None and self._taken > MOST_BYTES:
            raise ValueError("the ClientHello is too long")
        return hello

    def _has_record(self) -> bool:
        records = self._records
        if records and records[0] != HANDSHAKE:
            raise ValueError("not TLS")
        if len(records) >= 2 and records[1] != 3:
            raise ValueError("not a TLS version")
        if len(records) < 5:
            return False
        length = int.from_bytes(records[3:5], "big")
        if not 1 <= length <= _RECORD_BYTES:
            raise ValueError("a TLS record has an invalid length")
        return len(records) >= 5 + length

    def _read_record(self) -> Hello | None:
        """Moves a complete record into the message, and reads that when it is complete."""
        if not self._has_record():
            return None
        end = 5 + int.from_bytes(self._records[3:5], "big")
        self._message += self._records[5:end]
        del self._records[:end]
        message = self._message
        if message[0] != _CLIENT_HELLO:
            raise ValueError("not a ClientHello")
        if len(message) < 4:
            return None
        length = int.from_bytes(message[1:4], "big")
        if length > MOST_BYTES:
            raise ValueError("the ClientHello is too long")
        if len(message) < 4 + length:
            return None
        if len(message) > 4 + length:
            raise ValueError("trailing data after the ClientHello")
        return parse_hello(bytes(message[4:]))


def parse_hello(body: bytes) -> Hello:
    """The message without its head."""
    at = 2 + 32
    for width in (1, 2, 1):
        # A session, ciphers and compressions, none of which matter here.
        _, at = _sized(body, at, width)
    if at == len(body):
        return Hello(None, has_ech=False)
    extensions, at = _sized(body, at, 2)
    if at != len(body):
        raise ValueError("trailing data after the extensions")
    found: dict[int, bytes] = {}
    at = 0
    while at < len(extensions):
        if at + 2 > len(extensions):
            raise ValueError("the ClientHello is truncated")
        (kind,) = struct.unpack_from(">H", extensions, at)
        value, at = _sized(extensions, at + 2, 2)
        if kind in found:
            raise ValueError("an extension is repeated")
        found[kind] = value
    name = _parse_names(found[_SERVER_NAME]) if _SERVER_NAME in found else None
    return Hello(name, has_ech=_ECH in found)


def _parse_names(value: bytes) -> str:
    names, at = _sized(value, 0, 2)
    if at != len(value) or not names or names[0] != _HOST_NAME:
        raise ValueError("not exactly one server name")
    name, at = _sized(names, 1, 2)
    if at != len(names):
        raise ValueError("not exactly one server name")
    # What is not ASCII becomes something that is no name either.
    return canonical_name(name.decode("latin-1"))


def _sized(data: bytes, at: int, width: int) -> tuple[bytes, int]:
    """A value behind its length, and where it ends."""
    start = at + width
    end = start + int.from_bytes(data[at:start], "big")
    if start > len(data) or end > len(data):
        raise ValueError("the ClientHello is truncated")
    return data[start:end], end
