"""Removes private values from output that arrives in pieces."""

from __future__ import annotations

import re

from atoll.model.byte_search import ByteSearch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MARK = b"[redacted]"
SHORTEST_BYTES = 8
"""Shorter values occur in ordinary output by chance."""
_PROBE_BYTES = 32


class Redactor:
    """Replaces values in one stream, also where a value is split between pieces.

    The end of a piece that may be the beginning of a value is held until the next piece or `flush`.
    """

    __slots__ = ("_beginnings", "_held", "_pattern", "_search", "_values")

    def __init__(self, values: Iterable[bytes]) -> None:
        self._values = sorted(_forms(values), key=len, reverse=True)
        self._pattern: re.Pattern[bytes] | None = None
        """Made for the first value that is found: with a long file, that takes a second."""
        self._search = ByteSearch(self._values)
        """Faster than the pattern where there is no value."""
        self._beginnings = {
            value[:size]
            for value in self._values
            for size in range(1, min(len(value), _PROBE_BYTES))
        }
        self._held = b""

    def add(self, data: bytes) -> bytes:
        if not self._values:
            return data
        data = self._held + data
        hold = min(
            self._find_short_beginning(data),
            *(_find_long_beginning(data, value) for value in self._values),
        )
        ready, rest = self._replace(data, hold)
        self._held = data[rest:]
        return ready

    def flush(self) -> bytes:
        """Returns what was held when the stream has ended."""
        data, self._held = self._held, b""
        return self._replace(data, len(data))[0] if data else b""

    def _replace(self, data: bytes, hold: int) -> tuple[bytes, int]:
        """Returns the redacted text up to `hold`, and where the rest begins."""
        first = self._search.find(data)
        if first is None:
            return data[:hold], hold
        if self._pattern is None:
            self._pattern = re.compile(b"|".join(map(re.escape, self._values)))
        ready = bytearray()
        at = 0
        for match in self._pattern.finditer(data, first[0]):
            if match.start() >= hold:
                break
            ready += data[at : match.start()] + MARK
            at = match.end()
        rest = max(at, hold)
        return bytes(ready + data[at:rest]), rest

    def _find_short_beginning(self, data: bytes) -> int:
        """As `_find_long_beginning`, of any value, as far as less than a probe of it is there."""
        first = max(0, len(data) - _PROBE_BYTES + 1)
        ends = (at for at in range(first, len(data)) if data[at:] in self._beginnings)
        return next(ends, len(data))


def _forms(values: Iterable[bytes]) -> set[bytes]:
    """The values as a program prints them: a terminal changes the ends of lines."""
    long = {value for value in values if len(value) >= SHORTEST_BYTES}
    return long | {value.replace(b"\n", b"\r\n") for value in long}


def _find_long_beginning(data: bytes, value: bytes) -> int:
    """Returns where the last part of `data` starts that `value` begins with, or its length; only
    where a whole probe of the value is there.
    """
    at = max(0, len(data) - len(value) + 1)
    probe = value[:_PROBE_BYTES]
    while (at := data.find(probe, at)) >= 0:
        if value.startswith(data[at:]):
            return at
        at += 1
    return len(data)
