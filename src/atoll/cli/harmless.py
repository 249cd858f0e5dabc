"""Removes terminal control sequences from a run's output."""

from __future__ import annotations

import codecs
import re

_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, modes
    r"|\x1b[PX^_\]][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # DCS, OSC and kin
    r"|\x1b[ -/]*[0-~]"  # two-character escapes
)
_UNFINISHED = re.compile(
    r"\x1b(?:\[[0-?]{0,256}[ -/]{0,16}|[PX^_\]][^\x07\x1b\x9c]{0,4096}\x1b?|[ -/]{0,16})?\Z"
)
"""Bounded: no terminal has longer sequences, and held text is searched again with each piece."""
_MOVE = re.compile(r"\x1b\[([0-9;]{0,16})([BCEGHdf])")
"""Cursor movements that full-screen programs write instead of spaces and line ends."""
_LINE_MOVES = frozenset("BEHdf")
_MOST_BLANKS = 200
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Cleaner:
    """Cleans a stream that arrives in pieces, including sequences split between two of them."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._starts_line = True

    def clean(self, data: bytes) -> str:
        text = self._held + self._decoder.decode(data)
        unfinished = _UNFINISHED.search(text)
        cut = unfinished.start() if unfinished else len(text)
        self._held, text = text[cut:], text[:cut]
        return self._clean(text)

    def flush(self) -> str:
        """Returns the rest when the stream ends within a sequence."""
        text, self._held = self._held + self._decoder.decode(b"", final=True), ""
        return self._clean(text)

    def _clean(self, text: str) -> str:
        shown, at = [], 0
        for move in _MOVE.finditer(text):
            shown += [self._plain(text[at : move.start()]), self._blanks(move)]
            at = move.end()
        return "".join([*shown, self._plain(text[at:])])

    def _plain(self, text: str) -> str:
        plain = _CONTROL.sub("", _SEQUENCE.sub("", text).replace("\r\n", "\n"))
        self._starts_line = plain.endswith("\n") if plain else self._starts_line
        return plain

    def _blanks(self, move: re.Match[str]) -> str:
        """A line end for a movement to another line, spaces for one within the line; nothing where
        no text was written yet.
        """
        if self._starts_line:
            return ""
        if move[2] in _LINE_MOVES:
            self._starts_line = True
            return "\n"
        count = move[1] if move[2] == "C" and move[1].isdigit() else "1"
        return " " * min(int(count) or 1, _MOST_BLANKS)


def clean(data: bytes) -> str:
    """Cleans a complete text."""
    cleaner = Cleaner()
    return cleaner.clean(data) + cleaner.flush()
