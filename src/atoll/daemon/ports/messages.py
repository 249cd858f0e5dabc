"""HTTP/1 requests as they come over a connection: one head after another, and where bodies end.

Law: what two readers could understand in two ways is refused. Nothing here reads or writes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

HEAD_BYTES = 1 << 16
_LINE_BYTES = 1 << 12
_END = b"\r\n\r\n"
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST = re.compile(rb"(%b) ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])" % _TOKEN)
_FIELD = re.compile(rb"(%b):[ \t]*([\t\x20-\x7e\x80-\xff]*)" % _TOKEN)
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_LABELS = re.compile(r"(?:([a-z0-9-]+(?:\.[a-z0-9-]+)*)\.)?localhost\.?(?::[0-9]{1,5})?")
_OURS = (b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-for")


class BadRequestError(Exception):
    """A request that is not understood, or not for us."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Head(NamedTuple):
    """One request up to its body."""

    method: str
    host: str
    accept: str
    length: int
    """Of the body, in bytes; 0 for a chunked one."""
    is_chunked: bool
    is_upgrade: bool
    is_direct: bool
    """Whether a person asks, by an address bar or a command, rather than a page or a link."""
    lines: tuple[bytes, ...]
    """As they came, without their ends."""

    def forwarded(self) -> bytes:
        """The head for the server: as the client sent it, with where it came from."""
        kept = [line for line in self.lines if line.partition(b":")[0].lower() not in _OURS]
        host = self.host.encode("latin-1")
        ours = (b"X-Forwarded-Host: " + host, b"X-Forwarded-Proto: http",
                b"X-Forwarded-For: 127.0.0.1")  # fmt: skip
        return b"\r\n".join((*kept, *ours)) + _END


def find_end(buffer: bytearray) -> int | None:
    """Where the head in a buffer ends, None when it has not come whole yet.

    Raises BadRequestError when it is too long. Empty lines before it are taken away.
    """
    while buffer.startswith(b"\r\n"):
        del buffer[:2]
    end = buffer.find(_END, 0, HEAD_BYTES)
    if end < 0 and len(buffer) >= HEAD_BYTES:
        raise BadRequestError(431, "the head of the request is too long")
    return end + len(_END) if end >= 0 else None


def parse_head(data: bytes) -> Head:
    """`data` is a whole head. Raises BadRequestError."""
    lines = tuple(data.removesuffix(_END).split(b"\r\n"))
    request = _REQUEST.fullmatch(lines[0])
    if request is None:
        raise BadRequestError(400, "not a request of HTTP/1.0 or HTTP/1.1")
    method, target, minor = request[1].decode("ascii"), request[2], request[3]
    if method == "CONNECT":
        raise BadRequestError(405, "this is not a proxy")
    fields = _fields(lines[1:])
    host = _single(fields, b"host")
    if host is None:
        raise BadRequestError(400, "the request names no host")
    _require_same_host(target, host)
    length, is_chunked = _framing(fields, minor)
    connection = b",".join(fields.get(b"connection", ())).lower()
    options = {word.strip() for word in connection.split(b",")}
    return Head(
        method=method,
        host=host.decode("latin-1"),
        accept=b",".join(fields.get(b"accept", ())).decode("latin-1"),
        length=length,
        is_chunked=is_chunked,
        is_upgrade=b"upgrade" in fields and b"upgrade" in options,
        is_direct=_is_direct(fields),
        lines=lines,
    )


def _is_direct(fields: dict[bytes, list[bytes]]) -> bool:
    """Browsers say so themselves, and a page cannot change what they say (Fetch Metadata)."""
    if b"origin" in fields or b"referer" in fields:
        return False
    return all(value.lower() == b"none" for value in fields.get(b"sec-fetch-site", ()))


def _fields(lines: tuple[bytes, ...]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise BadRequestError(400, "a header of the request is malformed")
        found.setdefault(field[1].lower(), []).append(field[2].rstrip(b" \t"))
    return found


def _single(fields: dict[bytes, list[bytes]], name: bytes) -> bytes | None:
    values = fields.get(name, [])
    if len(values) > 1:
        raise BadRequestError(400, f"`{name.decode('ascii')}` is given more than once")
    return values[0] if values else None


def _require_same_host(target: bytes, host: bytes) -> None:
    """A target in absolute form counts more than `Host`: they must agree."""
    if target.startswith(b"/") or target == b"*":
        return
    scheme, _, rest = target.partition(b"://")
    if scheme.lower() != b"http" or re.split(rb"[/?#]", rest, maxsplit=1)[0] != host:
        raise BadRequestError(400, "the target of the request is not on its host")


def _framing(fields: dict[bytes, list[bytes]], minor: bytes) -> tuple[int, bool]:
    coding, length = _single(fields, b"transfer-encoding"), _single(fields, b"content-length")
    if coding is not None:
        if length is not None or minor == b"0" or coding.lower() != b"chunked":
            raise BadRequestError(400, "where the body ends cannot be told")
        return 0, True
    if length is None:
        return 0, False
    if not re.fullmatch(rb"[0-9]{1,18}", length):
        raise BadRequestError(400, "`content-length` is not a number")
    return int(length), False


class Body:
    """Tells how much of what comes belongs to a request's body."""

    def __init__(self, head: Head) -> None:
        self._left = head.length
        self._is_chunked = head.is_chunked
        self._line = b""
        self._expects = "size" if head.is_chunked else "data"

    @property
    def is_over(self) -> bool:
        return self._left == 0 and not self._is_chunked

    def take(self, data: bytes | bytearray) -> int:
        """How many bytes from the beginning of `data` are the body's. Raises BadRequestError."""
        position = 0
        while position < len(data) and not self.is_over:
            if self._left:
                step = min(self._left, len(data) - position)
                self._left -= step
                position += step
                continue
            end = data.find(b"\n", position) + 1 or len(data)
            self._line += bytes(data[position:end])
            position = end
            if len(self._line) > _LINE_BYTES:
                raise BadRequestError(400, "a line in the body is too long")
            if self._line.endswith(b"\n"):
                self._finish_line(self._line)
                self._line = b""
        return position

    def _finish_line(self, line: bytes) -> None:
        text = line.removesuffix(b"\r\n")
        if text == line:
            raise BadRequestError(400, "a line in the body has no proper end")
        if self._expects == "trailer":
            self._is_chunked = bool(text)
        elif self._expects == "end":
            if text:
                raise BadRequestError(400, "a chunk is longer than it says")
            self._expects = "size"
        else:
            size = _SIZE.fullmatch(text)
            if size is None:
                raise BadRequestError(400, "the size of a chunk is not a number")
            self._left = int(size[1], 16)
            self._expects = "end" if self._left else "trailer"


def parse_host(text: str) -> tuple[str, ...] | None:
    """The labels before `localhost`; None for every other host.

    A page of a foreign site whose name was made to lead to us still sends its own name here.
    """
    found = _LABELS.fullmatch(text.lower())
    if found is None:
        return None
    return tuple(found[1].split(".")) if found[1] else ()
