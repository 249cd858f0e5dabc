"""Heads of HTTP/1 messages, read strictly: what two programs could read differently is refused.

Nothing here does I/O. Everything raises ValueError, whose text is fit to be shown to whoever sent
the head, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from atoll.model.egress import Destination, parse_destination

MOST_BYTES = 65_536
END = b"\r\n\r\n"
HTTP_PORT = 80
_MOST_FIELDS = 256
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_REQUEST = re.compile(rb"(" + _TOKEN + rb"{1,32}) ([!-~]+) HTTP/1\.([01])")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t -~\x80-\xff]*))?")
_FIELD = re.compile(rb"(" + _TOKEN + rb"{1,256}):[ \t]*([\t -~\x80-\xff]*)")
_ABSOLUTE = re.compile(r"(?i:http)://([^/?#]*)([/?][^#]*)?")
_LENGTH = re.compile(rb"[0-9]{1,18}")

Field = tuple[bytes, bytes]

_OF_ONE_HOP = frozenset((b"connection", b"keep-alive", b"te", b"upgrade"))
_FRAMING = frozenset((b"host", b"content-length", b"transfer-encoding"))
"""What `Connection` may name but not take away."""
_PROXY = b"proxy-"


class Framing(NamedTuple):
    """How long a body is, by its head."""

    length: int | None = 0
    """None: it ends with the connection, or with its last chunk."""
    chunked: bool = False


class Request(NamedTuple):
    method: str
    path: str
    """What the server is asked for: origin-form, `*`, or empty for CONNECT."""
    target: Destination | None
    """Whom CONNECT or an absolute target names."""
    host: Destination | None
    """Whom `Host` names; only HTTP/1.0 may leave it out."""
    minor: int
    fields: tuple[Field, ...]
    framing: Framing

    @property
    def is_connect(self) -> bool:
        return self.method == "CONNECT"

    @property
    def upgrade(self) -> bytes:
        """The protocol that the connection shall go over to, if any; only WebSocket is known."""
        named = {token.lower() for token in _listed(self.fields, b"connection")}
        wanted = [value.lower() for name, value in self.fields if name.lower() == b"upgrade"]
        is_plain = self.minor == 1 and self.framing == Framing()
        return (
            b"websocket" if is_plain and b"upgrade" in named and wanted == [b"websocket"] else b""
        )

    @property
    def keeps_alive(self) -> bool:
        closes = b"close" in {token.lower() for token in _listed(self.fields, b"connection")}
        return self.minor == 1 and not closes


class Response(NamedTuple):
    status: int
    reason: bytes
    minor: int
    fields: tuple[Field, ...]

    @property
    def is_interim(self) -> bool:
        return 100 <= self.status < 200 and self.status != 101

    def framing(self, method: str) -> Framing:
        """How the body that answers `method` ends. ValueError when the head contradicts itself."""
        if method == "HEAD" or self.status < 200 or self.status in (204, 304):
            return Framing()
        return _framing(self.fields, otherwise=Framing(None))


def parse_request(head: bytes) -> Request:
    """A whole head, with the empty line that ends it."""
    first, fields = _split(head)
    match = _REQUEST.fullmatch(first)
    if not match:
        raise ValueError("the request line is not one of HTTP/1.0 or HTTP/1.1")
    method, written, minor = match[1].decode(), match[2].decode(), int(match[3])
    framing = _framing(fields, otherwise=Framing())
    if framing.chunked and minor == 0:
        raise ValueError("HTTP/1.0 has no chunks")
    if method == "CONNECT" and framing != Framing():
        raise ValueError("CONNECT has no body")
    target, path = _parse_target(method, written)
    return Request(method, path, target, _parse_host(fields, minor), minor, fields, framing)


def parse_response(head: bytes) -> Response:
    first, fields = _split(head)
    match = _STATUS.fullmatch(first)
    if not match:
        raise ValueError("the status line is not one of HTTP/1")
    return Response(int(match[2]), match[3] or b"", int(match[1]), fields)


def _split(head: bytes) -> tuple[bytes, tuple[Field, ...]]:
    if not head.endswith(END) or len(head) > MOST_BYTES:
        raise ValueError("the head has no end")
    first, *lines = head[: -len(END)].split(b"\r\n")
    if len(lines) > _MOST_FIELDS:
        raise ValueError("the head has too many fields")
    fields = []
    for line in lines:
        # Neither a line break of another kind nor a folded line fits.
        match = _FIELD.fullmatch(line)
        if not match:
            raise ValueError("a field of the head is malformed")
        fields.append((match[1], match[2].rstrip(b" \t")))
    return first, tuple(fields)


def _parse_target(method: str, written: str) -> tuple[Destination | None, str]:
    if method == "CONNECT":
        return _named("the target of CONNECT", written), ""
    if written.startswith("/") and "#" not in written:
        return None, written
    if written == "*" and method == "OPTIONS":
        return None, written
    match = _ABSOLUTE.fullmatch(written)
    if not match:
        raise ValueError("the target is neither `/PATH` nor `http://HOST/PATH`")
    path = match[2] or "/"
    where = _named("the host of the target", match[1], HTTP_PORT)
    return where, path if path.startswith("/") else f"/{path}"


def _parse_host(fields: Iterable[Field], minor: int) -> Destination | None:
    found = [value for name, value in fields if name.lower() == b"host"]
    if not found and minor == 0:
        return None
    if len(found) != 1 or not found[0].isascii():
        raise ValueError("there must be one `Host`")
    return _named("`Host`", found[0].decode(), HTTP_PORT)


def _named(what: str, text: str, default_port: int | None = None) -> Destination:
    try:
        return parse_destination(text, default_port=default_port)
    except ValueError as error:
        raise ValueError(f"{what} {error}") from None


def _framing(fields: Iterable[Field], *, otherwise: Framing) -> Framing:
    lengths = [value for name, value in fields if name.lower() == b"content-length"]
    codings = [value.lower() for name, value in fields if name.lower() == b"transfer-encoding"]
    if codings:
        if codings != [b"chunked"] or lengths:
            raise ValueError("the length of the body is told in more than one way")
        return Framing(None, chunked=True)
    if not lengths:
        return otherwise
    if len(lengths) != 1 or not _LENGTH.fullmatch(lengths[0]):
        raise ValueError("the length of the body is not one number")
    return Framing(int(lengths[0]))


def _listed(fields: Iterable[Field], wanted: bytes) -> list[bytes]:
    values = [value for name, value in fields if name.lower() == wanted]
    return [token.strip(b" \t") for value in values for token in value.split(b",")]


def passed_on(fields: Iterable[Field]) -> list[Field]:
    """What is meant for the other end, and not for whoever stands between."""
    fields = tuple(fields)
    named = {token.lower() for token in _listed(fields, b"connection")} - _FRAMING
    dropped = _OF_ONE_HOP | named
    return [
        field
        for field in fields
        if field[0].lower() not in dropped and not field[0].lower().startswith(_PROXY)
    ]


def render(first: bytes, fields: Iterable[Field]) -> bytes:
    lines = [first, *(name + b": " + value for name, value in fields)]
    return b"\r\n".join(lines) + END
