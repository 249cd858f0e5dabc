"""HTTP/1 message heads and bodies, parsed strictly.

A message that two parsers could read differently is refused: that is how requests are smuggled.
Heads, chunk lines and trailers are bounded. Nothing here does I/O, and every error is an HttpError,
whose text may be sent to the peer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from atoll.model.egress import Destination, parse_destination

MAX_HEAD_BYTES = 65_536
END = b"\r\n\r\n"
HTTP_PORT = 80
BAD_REQUEST, HEAD_TOO_LONG = 400, 431
_MAX_FIELDS = 256
_MAX_LINE_BYTES = 4096
_MAX_TRAILERS = 64
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_REQUEST = re.compile(rb"(" + _TOKEN + rb"{1,32}) ([!-~\x80-\xff]+) HTTP/1\.([01])")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t -~\x80-\xff]*))?")
_FIELD = re.compile(rb"(" + _TOKEN + rb"{1,256}):[ \t]*([\t -~\x80-\xff]*)")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t -~]*)?")
ABSOLUTE = re.compile(rb"(?i:http)://([^/?#]*)([/?][^#]*)?")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_HOP_BY_HOP = frozenset((b"connection", b"keep-alive", b"te", b"upgrade"))
_FRAMING = frozenset((b"host", b"content-length", b"transfer-encoding"))
"""Fields that stay even if `Connection` names them."""
_PROXY = b"proxy-"

Field = tuple[bytes, bytes]


class HttpError(ValueError):
    """A malformed or ambiguous message; `status` is the response that it gets."""

    def __init__(self, message: str, status: int = BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


class Framing(NamedTuple):
    """How the end of a body is found."""

    length: int | None = 0
    """None: the body ends with the connection, or with its last chunk."""
    chunked: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: bytes
    """As it was sent."""
    minor: int
    """The version is HTTP/1.minor."""
    lines: tuple[bytes, ...]
    """The request line and the fields as they were sent, without line ends."""
    fields: tuple[Field, ...]
    framing: Framing

    @property
    def is_connect(self) -> bool:
        return self.method == "CONNECT"

    @property
    def connection_options(self) -> set[bytes]:
        return _listed(self.fields, b"connection")

    @property
    def keeps_alive(self) -> bool:
        return self.minor == 1 and b"close" not in self.connection_options

    def values(self, name: bytes) -> list[bytes]:
        """The values of all fields with a lower-case name."""
        return _values(self.fields, name)


@dataclass(frozen=True, slots=True)
class ProxyRequest(Request):
    path: str
    """What the server is asked for: origin-form, `*`, or empty for CONNECT."""
    authority: Destination | None
    """The destination in the target of CONNECT or in an absolute target."""
    host: Destination | None
    """The destination in `Host`, which only HTTP/1.0 may omit."""

    @property
    def upgrade(self) -> bytes:
        """The protocol that the client asks to switch to; only WebSocket is supported."""
        wanted = [value.lower() for value in self.values(b"upgrade")]
        is_plain = self.minor == 1 and self.framing == Framing()
        is_upgrade = b"upgrade" in self.connection_options and wanted == [b"websocket"]
        return b"websocket" if is_plain and is_upgrade else b""


class Response(NamedTuple):
    status: int
    reason: bytes
    minor: int
    fields: tuple[Field, ...]

    @property
    def is_interim(self) -> bool:
        return 100 <= self.status < 200 and self.status != 101

    def framing(self, method: str) -> Framing:
        """The framing of the body that answers `method`. HttpError when it is ambiguous."""
        if method == "HEAD" or self.status < 200 or self.status in (204, 304):
            return Framing()
        return _framing(self.fields, otherwise=Framing(None))


def parse_request(head: bytes) -> Request:
    """Parses a whole head, including the empty line that ends it."""
    lines, fields = _split(head)
    match = _REQUEST.fullmatch(lines[0])
    if not match:
        raise HttpError("the request line is not HTTP/1.0 or HTTP/1.1")
    method, minor = match[1].decode(), int(match[3])
    framing = _framing(fields, otherwise=Framing())
    if framing.chunked and minor == 0:
        raise HttpError("HTTP/1.0 has no chunked transfer coding")
    if method == "CONNECT" and framing != Framing():
        raise HttpError("CONNECT has no body")
    hosts = _values(fields, b"host")
    if len(hosts) > 1 or (not hosts and minor == 1):
        raise HttpError("the request needs exactly one `Host`")
    return Request(method, match[2], minor, lines, fields, framing)


def parse_proxy_request(head: bytes) -> ProxyRequest:
    """Parses a whole head and the destinations that it names."""
    request = parse_request(head)
    authority, path = _parse_target(request.method, request.target)
    hosts = request.values(b"host")
    return ProxyRequest(
        method=request.method,
        target=request.target,
        minor=request.minor,
        lines=request.lines,
        fields=request.fields,
        framing=request.framing,
        path=path,
        authority=authority,
        host=_destination("`Host`", hosts[0], HTTP_PORT) if hosts else None,
    )


def parse_response(head: bytes) -> Response:
    lines, fields = _split(head)
    match = _STATUS.fullmatch(lines[0])
    if not match:
        raise HttpError("the status line is not HTTP/1")
    return Response(int(match[2]), match[3] or b"", int(match[1]), fields)


def _split(head: bytes) -> tuple[tuple[bytes, ...], tuple[Field, ...]]:
    if not head.endswith(END):
        raise HttpError("the head is cut short")
    if len(head) > MAX_HEAD_BYTES:
        raise HttpError("the head is too long", HEAD_TOO_LONG)
    lines = tuple(head[: -len(END)].split(b"\r\n"))
    if len(lines) > 1 + _MAX_FIELDS:
        raise HttpError("the head has too many fields", HEAD_TOO_LONG)
    return lines, tuple(map(_parse_field, lines[1:]))


def _parse_field(line: bytes) -> Field:
    # Neither a bare CR or LF nor a folded line matches.
    match = _FIELD.fullmatch(line)
    if not match:
        raise HttpError("a header or trailer field is malformed")
    return match[1], match[2].rstrip(b" \t")


def _parse_target(method: str, target: bytes) -> tuple[Destination | None, str]:
    if method == "CONNECT":
        return _destination("the target of CONNECT", target), ""
    text = target.decode("latin-1")
    if target.isascii() and text.startswith("/") and "#" not in text:
        return None, text
    if target == b"*" and method == "OPTIONS":
        return None, text
    match = ABSOLUTE.fullmatch(target)
    if not match or not target.isascii():
        raise HttpError("the target is neither `/PATH` nor `http://HOST/PATH`")
    path = (match[2] or b"/").decode()
    authority = _destination("the host of the target", match[1], HTTP_PORT)
    return authority, path if path.startswith("/") else f"/{path}"


def _destination(what: str, text: bytes, default_port: int | None = None) -> Destination:
    try:
        return parse_destination(text.decode("ascii"), default_port=default_port)
    except UnicodeDecodeError:
        raise HttpError(f"{what} is not ASCII") from None
    except ValueError as error:
        raise HttpError(f"{what} {error}") from None


def _framing(fields: Iterable[Field], *, otherwise: Framing) -> Framing:
    fields = tuple(fields)
    lengths = _values(fields, b"content-length")
    codings = [value.lower() for value in _values(fields, b"transfer-encoding")]
    if codings:
        if codings != [b"chunked"] or lengths:
            raise HttpError("the length of the body is ambiguous")
        return Framing(None, chunked=True)
    if not lengths:
        return otherwise
    if len(lengths) != 1 or not _LENGTH.fullmatch(lengths[0]):
        raise HttpError("`Content-Length` is not one number")
    return Framing(int(lengths[0]))


def _values(fields: Iterable[Field], wanted: bytes) -> list[bytes]:
    return [value for name, value in fields if name.lower() == wanted]


def _listed(fields: Iterable[Field], wanted: bytes) -> set[bytes]:
    """The members of a comma-separated field, in lower case."""
    joined = b",".join(_values(fields, wanted)).lower()
    return {token.strip(b" \t") for token in joined.split(b",")}


def end_to_end(fields: Iterable[Field]) -> list[Field]:
    """The fields that a proxy passes on: all but the hop-by-hop ones."""
    fields = tuple(fields)
    dropped = _HOP_BY_HOP | (_listed(fields, b"connection") - _FRAMING)
    return [
        field
        for field in fields
        if field[0].lower() not in dropped and not field[0].lower().startswith(_PROXY)
    ]


def usual_name(name: bytes) -> bytes:
    """The name of a field in lower case, with `-` for `_`, as which some servers read it."""
    return name.lower().replace(b"_", b"-")


def render(first: bytes, fields: Iterable[Field]) -> bytes:
    lines = [first, *(name + b": " + value for name, value in fields)]
    return b"\r\n".join(lines) + END


class Body(Protocol):
    """Finds the end of a body in a stream of bytes."""

    @property
    def is_over(self) -> bool: ...

    def take(self, data: bytes | bytearray) -> int:
        """Returns how many bytes at the start of `data` belong to the body.

        `data` follows the bytes that were taken before. HttpError when it is malformed.
        """
        ...


def body_of(framing: Framing) -> Body:
    if framing.chunked:
        return ChunkedBody()
    return UnboundedBody() if framing.length is None else SizedBody(framing.length)


class SizedBody:
    def __init__(self, length: int) -> None:
        self._left = length

    @property
    def is_over(self) -> bool:
        return self._left == 0

    def take(self, data: bytes | bytearray) -> int:
        taken = min(len(data), self._left)
        self._left -= taken
        return taken


class UnboundedBody:
    """Ends with the connection."""

    is_over = False

    def take(self, data: bytes | bytearray) -> int:
        return len(data)


class ChunkedBody:
    def __init__(self) -> None:
        self._left = 0
        """Bytes left of the current chunk, including the line end after it."""
        self._line = bytearray()
        """The beginning of an incomplete line."""
        self._trailers = 0
        self._in_trailer = False
        self.is_over = False

    def take(self, data: bytes | bytearray) -> int:
        at = 0
        while at < len(data) and not self.is_over:
            at = self._pass_chunk(data, at) if self._left else self._pass_line(data, at)
        return at

    def _pass_chunk(self, data: bytes | bytearray, at: int) -> int:
        end = min(len(data), at + self._left)
        # The last two bytes are the line end.
        for index in range(max(at, at + self._left - 2), end):
            if data[index] != b"\r\n"[index - (at + self._left - 2)]:
                raise HttpError("a chunk is longer than its size")
        self._left -= end - at
        return end

    def _pass_line(self, data: bytes | bytearray, at: int) -> int:
        newline = data.find(b"\n", at)
        end = len(data) if newline < 0 else newline + 1
        if len(self._line) + end - at > _MAX_LINE_BYTES:
            raise HttpError("a chunk line or trailer is too long")
        self._line += data[at:end]
        if newline >= 0:
            line = bytes(self._line)
            self._line.clear()
            if not line.endswith(b"\r\n"):
                raise HttpError("a chunk line or trailer does not end with CRLF")
            self._parse_line(line[:-2])
        return end

    def _parse_line(self, line: bytes) -> None:
        if self._in_trailer:
            self.is_over = not line
            if line:
                self._trailers += 1
                if self._trailers > _MAX_TRAILERS:
                    raise HttpError("there are too many trailer fields")
                _parse_field(line)
            return
        match = _CHUNK.fullmatch(line)
        if not match:
            raise HttpError("a chunk has no valid size")
        size = int(match[1], 16)
        self._in_trailer = size == 0
        self._left = size + 2 if size else 0
