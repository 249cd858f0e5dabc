"""What a program has on its screen, read from the output to its terminal.

A full-screen program writes only what has changed, wherever on the screen that is, so that its
output in the order of time is pieces of words. What it writes is hostile text and decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from atoll.engine.agent.event_log import EventReader
from atoll.keeper.log import LogEntry
from atoll.model.agent import AgentEvent, AgentEventKind

_PLACES = re.compile(
    rb"\x1b\[(?:[0-9;]{0,16}[ABEFGHdf]|\?(?:47|1000|1002|1003|1047|1049|2004|2026)[hl])"
)
"""What places text on a screen, or prepares that."""
_TOKEN = re.compile(
    r"\x1b[PX^_\]][^\x07\x1b\x9c]{0,65536}(?:\x07|\x1b\\|\x9c|\Z)"  # DCS, OSC and kin
    r"|\x1b\[(?P<values>[0-9;]{0,32})(?P<move>[ABCDEFGHJKLMPSTXdfr@])"
    r"|\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b(?P<short>[ -/]*[0-~])"
    r"|(?P<control>[\x00-\x1f\x7f-\x9f])"
    r"|(?P<text>[^\x00-\x1f\x7f-\x9f]+)"
)
_INVISIBLE = re.compile(r"[\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufffd]")
_DRAWN = re.compile(
    r"[\u2190-\u21ff\u2300-\u23ff\u2500-\u27bf\u2800-\u28ff\u2b00-\u2bff\ue000-\uf8ff]"
)
"""Arrows, frames, blocks, spinners, and the private symbols of fonts."""
_HINT = re.compile(
    r"\b(?:esc|enter|tab|shift|ctrl|alt|ctrl-[a-z])\b.{0,16}\b(?:to|for)\b|\bctrl\s?[+-]|\bshift\s?\+"
    r"|\bfor (?:shortcuts|help|commands)\b"
    r"|^\w{1,32}(?: \w{1,32})?(?:\u2026|\.\.\.)(?: ?\(|$)"
    r"|^[~/]\S{0,300}(?: [\[(].{0,100}[\])])?$",
    re.IGNORECASE,
)
"""What a program says about its keys, that it works, and where."""
_INPUT = re.compile(
    r"[\s\u2500-\u259f]{0,8}"
    r"(?:[>\u276f\u203a\U0001fabf](?:\s|$)|.\s{1,8}(?:type your message|ask anything)\b)",
    re.IGNORECASE,
)
"""The beginning of an input box; what is below it is about the program."""
_VALUE = re.compile(r" {3,}(?=\S)|\|")
_DOTS = (" \u00b7 ", " \u2022 ")
"""What is between the values of a status line."""
_BULLETS = " *\u00b7\u2022"
_WORD = re.compile(r"[^\W\d_]{2,}")
_ROWS, _MOST_ROWS, _MOST_COLUMNS = 24, 300, 500


def read_screen(entries: Iterable[LogEntry], *, is_plain: bool, name: str) -> Iterator[AgentEvent]:
    """The lines that a program wrote to its terminal; one notice instead once it places text on the
    screen, unless it `is_plain`: known to write lines.
    """
    reader = EventReader("text")
    is_screen = False
    for entry in entries:
        if is_screen:
            # To the end: one who follows waits for it.
            continue
        if not is_plain and _PLACES.search(entry.data):
            is_screen = True
            text = f"its screen has no transcript; to see it: atoll attach {name}"
            yield AgentEvent(AgentEventKind.NOTICE, text, at=entry.time)
            continue
        yield from reader.feed(entry)
    if not is_screen:
        yield from reader.flush()


def find_last_words(entries: Iterable[LogEntry]) -> str:
    """The last line with words on the screen of a program, without frames, spinners, its input box
    and what it says about its keys; empty when there is none.
    """
    screen = _Screen()
    screen.write(b"".join(entry.data for entry in entries if entry.stream == "out"))
    lines = screen.lines()
    box = max((row for row, line in enumerate(lines) if _INPUT.match(line)), default=len(lines))
    for line in reversed(lines[:box]):
        words = " ".join(_DRAWN.sub(" ", _INVISIBLE.sub("", line)).split()).strip(_BULLETS)
        if _WORD.search(words) and not _is_about_program(line, words):
            return words
    return ""


def _is_about_program(line: str, words: str) -> bool:
    """Whether a line is part of an input box, a status line, or about keys."""
    is_status = len(_VALUE.findall(line.strip())) > 1 or any(dot in words for dot in _DOTS)
    return is_status or bool(_INPUT.match(line) or _HINT.search(words))


class _Screen:
    """A grid of characters, as far as a terminal of unknown size can be followed."""

    def __init__(self) -> None:
        self._rows: list[list[str]] = []
        self._row = self._column = 0
        self._height = _ROWS
        self._bottom: int | None = None

    def write(self, output: bytes) -> None:
        for token in _TOKEN.finditer(output.decode(errors="replace")):
            if token["text"] is not None:
                self._put(token["text"])
            elif token["control"] is not None:
                self._control(token["control"])
            elif token["move"] is not None:
                values = [int(v or 0) % 100_000 for v in token["values"].split(";")]
                self._move(token["move"], values)
            elif token["short"] == "M":
                self._row = max(0, self._row - 1)

    def lines(self) -> list[str]:
        return ["".join(row) for row in self._rows]

    def _put(self, text: str) -> None:
        while len(self._rows) <= self._row:
            self._rows.append([])
        row = self._rows[self._row]
        room = text[: max(0, _MOST_COLUMNS - self._column)]
        row += [" "] * (self._column - len(row))
        row[self._column : self._column + len(room)] = room
        self._column += len(room)

    def _control(self, control: str) -> None:
        if control == "\n":
            self._feed()
        elif control == "\r":
            self._column = 0
        elif control == "\b":
            self._column = max(0, self._column - 1)
        elif control == "\t":
            self._column = min((self._column // 8 + 1) * 8, _MOST_COLUMNS)

    def _feed(self) -> None:
        bottom = self._height - 1 if self._bottom is None else self._bottom
        if self._row == bottom:
            if len(self._rows) > bottom:
                self._rows.insert(bottom + 1, [])
                del self._rows[0]
        else:
            self._row = min(self._row + 1, _MOST_ROWS)

    def _move(self, final: str, values: list[int]) -> None:
        first = values[0]
        count = max(1, first)
        second = values[1] if len(values) > 1 else 0
        if final in "JKXP":
            self._erase(final, first)
        elif final == "r":
            self._bottom = min(second, _MOST_ROWS) - 1 if second > 0 else None
            self._row = self._column = 0
        else:
            self._row = self._row_after(final, count)
            column = self._column_after(final, count, max(1, second))
            self._column = min(max(0, column), _MOST_COLUMNS)

    def _row_after(self, final: str, count: int) -> int:
        if final in "AF":
            return max(0, self._row - count)
        if final in "BE":
            row = self._row + count
            if count < _ROWS:
                # The screen is at least so high; more is a way to the last row.
                self._height = min(_MOST_ROWS, max(self._height, row + 1))
            return min(row, self._height - 1)
        if final in "Hfd":
            row = min(count, _MOST_ROWS) - 1
            self._height = max(self._height, row + 1)
            return row
        return self._row

    def _column_after(self, final: str, count: int, second: int) -> int:
        if final in "EF":
            return 0
        if final in "Hf":
            return second - 1
        by = {"C": self._column + count, "D": self._column - count, "G": count - 1}
        return by.get(final, self._column)

    def _erase(self, final: str, what: int) -> None:
        if final == "J" and what >= 2:
            self._rows.clear()
            return
        if final == "J" and what == 0:
            del self._rows[self._row + 1 :]
        if self._row >= len(self._rows):
            return
        row = self._rows[self._row]
        if final == "X":
            end = min(self._column + max(1, what), len(row))
            row[self._column : end] = [" "] * max(0, end - self._column)
        elif final == "P":
            del row[self._column : self._column + max(1, what)]
        elif what == 0:
            del row[self._column :]
        elif what == 1:
            row[: self._column + 1] = [" "] * min(self._column + 1, len(row))
        else:
            row.clear()
