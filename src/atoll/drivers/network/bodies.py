"""Where a body of HTTP/1 ends, found while it passes by.

The bytes go on as they came; a chunk that two programs could read differently is refused.
"""

from __future__ import annotations

import re
from typing import Protocol

from atoll.drivers.network.heads import Framing

_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t -~]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}:[\t -~\x80-\xff]*")
_LINE_BYTES = 4096
_MOST_TRAILERS = 64


class Body(Protocol):
    """A body on its way."""

    @property
    def is_over(self) -> bool: ...

    def take(self, data: bytes) -> int:
        """How many of these bytes, which follow those taken before, belong to the body.

        ValueError when they cannot.
        """
        ...


def body_of(framing: Framing) -> Body:
    if framing.chunked:
        return Chunked()
    return Endless() if framing.length is None else Sized(framing.length)


class Sized:
    def __init__(self, length: int) -> None:
        self._left = length

    @property
    def is_over(self) -> bool:
        return self._left == 0

    def take(self, data: bytes) -> int:
        taken = min(len(data), self._left)
        self._left -= taken
        return taken


class Endless:
    """Ends when the connection does."""

    is_over = False

    def take(self, data: bytes) -> int:
        return len(data)


class Chunked:
    def __init__(self) -> None:
        self._left = 0
        """Of the current chunk, with the line break after it."""
        self._line = bytearray()
        """What has come of a line that is not complete."""
        self._trailers = 0
        self._in_trailer = False
        self.is_over = False

    def take(self, data: bytes) -> int:
        at = 0
        while at < len(data) and not self.is_over:
            at = self._pass_chunk(data, at) if self._left else self._pass_line(data, at)
        return at

    def _pass_chunk(self, data: bytes, at: int) -> int:
        end = min(len(data), at + self._left)
        # The last two bytes are the line break.
        for index in range(max(at, at + self._left - 2), end):
            if data[index] != b"\r\n"[index - (at + self._left - 2)]:
                raise ValueError("a chunk is longer than it says")
        self._left -= end - at
        return end

    def _pass_line(self, data: bytes, at: int) -> int:
        newline = data.find(b"\n", at)
        end = len(data) if newline < 0 else newline + 1
        if len(self._line) + end - at > _LINE_BYTES:
            raise ValueError("a line between chunks is too long")
        self._line += data[at:end]
        if newline >= 0:
            line = bytes(self._line)
            self._line.clear()
            if not line.endswith(b"\r\n"):
                raise ValueError("a line between chunks has no proper end")
            self._read_line(line[:-2])
        return end

    def _read_line(self, line: bytes) -> None:
        if self._in_trailer:
            self._trailers += 1
            self.is_over = not line
            if line and (not _TRAILER.fullmatch(line) or self._trailers > _MOST_TRAILERS):
                raise ValueError("a trailer is malformed")
            return
        match = _CHUNK.fullmatch(line)
        if not match:
            raise ValueError("a chunk has no size")
        size = int(match[1], 16)
        self._in_trailer = size == 0
        self._left = size + 2 if size else 0
