"""What is kept of the output of a check while it runs: its end, its figures, and its warnings."""

from __future__ import annotations

import re

from atoll.engine.check import figures
from atoll.model.check import Figure

LOG_BYTES = 4 << 20
"""The end of both streams together, which becomes the log."""
TAIL_BYTES = 6000
"""The end of that, which is stored with the result."""
_TAIL_LINES = 60
_START_BYTES = 256
_WARNING_BYTES = 2000
_WARNING = re.compile(rb"(?i:\bwarning\b\s*[:\[(])|\bWARN\b|\b[A-Z][A-Za-z]{2,40}Warning\b")


class _Lines:
    """Cuts a stream into lines. Of an overlong line only the beginning is kept."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        *ended, rest = data.split(b"\n")
        lines = []
        for piece in ended:
            self._add(piece)
            lines.append(bytes(self._begun))
            self._begun.clear()
        self._add(rest)
        return lines

    def _add(self, piece: bytes) -> None:
        room = figures.LINE_BYTES + 1 - len(self._begun)
        if room > 0:
            self._begun += piece[:room]

    def flush(self) -> list[bytes]:
        return [bytes(self._begun)] if self._begun else []


class ObservedOutput:
    """Reads both streams of a check to their end, within a fixed amount of memory."""

    def __init__(self, *, has_figures: bool = False) -> None:
        self.warnings = 0
        self.dropped_bytes = 0
        """How much of the output came before `log` and is not kept."""
        self._has_figures = has_figures
        self._figures: dict[str, Figure] = {}
        self._lines = {"out": _Lines(), "err": _Lines()}
        self._end = bytearray()
        self._object: bytearray | None = bytearray()
        """Standard output, as long as it may be one JSON object."""

    def add(self, stream: str, data: bytes) -> None:
        self._keep(data)
        if stream == "out" and self._object is not None and self._has_figures:
            self._object += data
            start = bytes(self._object[:_START_BYTES]).lstrip()[:1]
            if start not in (b"", b"{") or len(self._object) > figures.JSON_BYTES:
                self._object = None
        for line in self._lines[stream].feed(data):
            self._read(stream, line)

    def _keep(self, data: bytes) -> None:
        self._end += data
        # Not each time: every cut moves what is left.
        if len(self._end) > 2 * LOG_BYTES:
            self._cut()

    def _cut(self) -> None:
        excess = max(0, len(self._end) - LOG_BYTES)
        del self._end[:excess]
        self.dropped_bytes += excess

    def _read(self, stream: str, line: bytes) -> None:
        if _WARNING.search(line[:_WARNING_BYTES]):
            self.warnings += 1
        if self._has_figures and stream == "out" and len(line) <= figures.LINE_BYTES:
            for figure in figures.parse_one(line.decode(errors="replace")):
                figures.keep(self._figures, figure)

    def close(self) -> None:
        """Reads the last lines, which may have no newline."""
        for stream, lines in self._lines.items():
            for line in lines.flush():
                self._read(stream, line)
        if not self._figures and self._object:
            for figure in figures.parse_object(self._object.decode(errors="replace")):
                figures.keep(self._figures, figure)
        self._object = None
        self._cut()

    @property
    def figures(self) -> tuple[Figure, ...]:
        return tuple(self._figures.values())

    @property
    def log(self) -> bytes:
        """The end of the output, as it came."""
        return bytes(self._end)

    @property
    def tail(self) -> str:
        """The last lines of the output."""
        text = self._end[-TAIL_BYTES:].decode(errors="replace")
        return "\n".join(text.rstrip().split("\n")[-_TAIL_LINES:])
