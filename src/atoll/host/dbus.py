"""A single D-Bus method call to a service that listens on a socket of this user.

Implements only what such a call needs: authentication by user id, the call and its reply. It starts
no program and needs no bus, so it works with the private socket of a systemd user manager.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from atoll.keeper.peer_check import credentials

_CALL, _RETURN, _ERROR = 1, 2, 3
_PATH, _INTERFACE, _MEMBER, _DESTINATION, _SIGNATURE = 1, 2, 3, 6, 8
_SERIAL = 1
_FIXED = struct.Struct("<BBBBIII")
_LONGEST_LINE = 4096
_LONGEST_MESSAGE = 1 << 24


class DBusError(Exception):
    """The service refused the call, or its reply could not be parsed."""


class Method(NamedTuple):
    """The method to call, and its object."""

    destination: str
    path: str
    interface: str
    member: str


class DBusBody:
    """The arguments of a call, marshalled in order; `signature` grows with them."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.signature = ""

    def string(self, value: str) -> None:
        self.signature += "s"
        self._put_string(value)

    def properties(self, values: Sequence[tuple[str, str, object]]) -> None:
        """An array of names with variants (`a(sv)`); supported types are `s`, `b`, `t` and `au`."""
        self.signature += "a(sv)"
        self._array(8, [partial(self._put_property, *value) for value in values])

    def no_units(self) -> None:
        """An empty array of names with properties (`a(sa(sv))`)."""
        self.signature += "a(sa(sv))"
        self._array(8, [])

    def align(self, size: int) -> None:
        self.data += bytes(-len(self.data) % size)

    def field(self, code: int, kind: str, value: str) -> None:
        """An entry of the message header."""
        self.align(8)
        self.data.append(code)
        self._put_signature(kind)
        self._put_signature(value) if kind == "g" else self._put_string(value)

    def _put_property(self, name: str, kind: str, value: object) -> None:
        self.align(8)
        self._put_string(name)
        self._put_signature(kind)
        if kind == "s":
            self._put_string(str(value))
        elif kind == "b":
            self._put_number("<I", int(bool(value)))
        elif kind == "t":
            self._put_number("<Q", int(str(value)))
        elif kind == "au" and isinstance(value, list):
            self._array(4, [partial(self._put_number, "<I", each) for each in value])
        else:
            raise ValueError(f"`{name}` cannot be sent as `{kind}`")

    def _array(self, alignment: int, items: Sequence[Callable[[], None]]) -> None:
        """The length in bytes, without the padding before the first item, then the items."""
        self._put_number("<I", 0)
        place = len(self.data) - 4
        self.align(alignment)
        start = len(self.data)
        for put in items:
            put()
        struct.pack_into("<I", self.data, place, len(self.data) - start)

    def _put_number(self, form: str, value: int) -> None:
        self.align(struct.calcsize(form))
        self.data += struct.pack(form, value)

    def _put_string(self, value: str) -> None:
        encoded = value.encode()
        self._put_number("<I", len(encoded))
        self.data += encoded + b"\0"

    def _put_signature(self, value: str) -> None:
        self.data.append(len(value))
        self.data += value.encode("ascii") + b"\0"


def render_call(method: Method, body: DBusBody) -> bytes:
    """The complete message."""
    fields = DBusBody()
    fields.field(_PATH, "o", method.path)
    fields.field(_INTERFACE, "s", method.interface)
    fields.field(_MEMBER, "s", method.member)
    fields.field(_DESTINATION, "s", method.destination)
    fields.field(_SIGNATURE, "g", body.signature)
    length = len(fields.data)
    fields.align(8)
    fixed = _FIXED.pack(ord("l"), _CALL, 0, 1, len(body.data), _SERIAL, length)
    return fixed + bytes(fields.data) + bytes(body.data)


def call(path: str, method: Method, body: DBusBody, *, timeout_s: float) -> None:
    """Calls a method of the service that listens at `path`, and waits for the reply.

    Raises OSError if nothing listens there, TimeoutError, EOFError if the service closes the
    connection, and DBusError if it refuses the call.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        stream = _Stream(sock, time.monotonic() + timeout_s)
        sock.settimeout(timeout_s)
        sock.connect(path)
        if not credentials(sock)[0]:
            # Process ids differ between pid namespaces.
            raise DBusError("the service is in another pid namespace")
        stream.send(b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\n")
        if not stream.line().startswith(b"OK "):
            raise DBusError("the service rejects this user")
        stream.send(b"BEGIN\r\n" + render_call(method, body))
        _await_reply(stream)


class _Stream:
    """A socket with one deadline for everything sent and received."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def send(self, data: bytes) -> None:
        self._limit()
        self._sock.sendall(data)

    def line(self) -> bytes:
        found = b""
        while not found.endswith(b"\r\n"):
            found += self.exactly(1)
            if len(found) > _LONGEST_LINE:
                raise DBusError("the service does not speak D-Bus")
        return found

    def exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            self._limit()
            chunk = self._sock.recv(count - len(found))
            if not chunk:
                raise EOFError("the service closed the connection")
            found += chunk
        return bytes(found)

    def _limit(self) -> None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the service does not answer")
        self._sock.settimeout(left_s)


def _await_reply(stream: _Stream) -> None:
    """Signals may come first; there is only one call, so there is only one reply."""
    while True:
        fixed = stream.exactly(_FIXED.size)
        order = "<" if fixed[:1] == b"l" else ">"
        kind = fixed[1]
        body_bytes, _, fields_bytes = struct.unpack(f"{order}III", fixed[4:])
        if body_bytes + fields_bytes > _LONGEST_MESSAGE:
            raise DBusError("the service does not speak D-Bus")
        stream.exactly(fields_bytes + -fields_bytes % 8)
        body = stream.exactly(body_bytes)
        if kind == _RETURN:
            return
        if kind == _ERROR:
            raise DBusError(_first_string(body, order) or "the service refused the call")


def _first_string(body: bytes, order: str) -> str:
    if len(body) < 4:
        return ""
    (length,) = struct.unpack(f"{order}I", body[:4])
    return body[4 : 4 + length].decode(errors="replace")
