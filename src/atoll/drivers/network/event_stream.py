"""Server-sent events: the data of each event out of a byte stream, in bounded memory. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE_END = re.compile(rb"\r\n|\r|\n")
_DATA = b"data:"


class EventStream:
    """Takes bytes in any portions. An event whose data is longer than the limit is left out."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line = bytearray()
        self._data: bytearray | None = None
        """Of the present event; None: it has no data so far."""
        self._is_too_long = False
        self._after_cr = False
        self.has_left_out = False
        """Whether an event was too long."""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that are complete."""
        found = (self._take(line) for line in self._lines(data))
        return [event for event in found if event is not None]

    def end(self) -> list[bytes]:
        """The last event, if the stream ended without the empty line that closes it."""
        return self.feed(b"\n\n")

    def _lines(self, data: bytes) -> Iterator[bytes]:
        if not data:
            return
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
        self._after_cr = data.endswith(b"\r")
        *whole, rest = _LINE_END.split(data)
        for part in whole:
            self._extend(part)
            line = bytes(self._line)
            self._line.clear()
            yield line
        self._extend(rest)

    def _extend(self, part: bytes) -> None:
        room = self._limit + len(_DATA) + 1 - len(self._line)
        self._is_too_long |= len(part) > room
        self._line += part[: max(room, 0)]

    def _take(self, line: bytes) -> bytes | None:
        if not line:
            event, is_whole = self._data, not self._is_too_long
            self._data, self._is_too_long = None, False
            self.has_left_out |= not is_whole
            return bytes(event) if event is not None and is_whole else None
        if line.startswith(_DATA):
            value = line[len(_DATA) :].removeprefix(b" ")
            if self._data is None:
                self._data = bytearray(value)
            elif len(self._data) + len(value) < self._limit:
                self._data += b"\n" + value
            else:
                self._is_too_long = True
        return None
