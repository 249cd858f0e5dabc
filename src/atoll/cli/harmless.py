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
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Cleaner:
    """Cleans a stream that arrives in pieces, including sequences split between two of them."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def clean(self, data: bytes) -> str:
        text = self._held + self._decoder.decode(data)
        unfinished = _UNFINISHED.search(text)
        cut = unfinished.start() if unfinished else len(text)
        self._held, text = text[cut:], text[:cut]
        return _clean(text)

    def flush(self) -> str:
        """Returns the rest when the stream ends within a sequence."""
        text, self._held = self._held + self._decoder.decode(b"", final=True), ""
        return _clean(text)


def _clean(text: str) -> str:
    return _CONTROL.sub("", _SEQUENCE.sub("", text).replace("\r\n", "\n"))


def clean(data: bytes) -> str:
    """Cleans a complete text."""
    cleaner = Cleaner()
    return cleaner.clean(data) + cleaner.flush()
