"""Finds the line of each key in a TOML text, and renders keys for messages.

`tomllib` does not keep lines, and takes quadratic time for long dotted keys. This scan is linear,
tolerates any text, and is meant to run first: the caller can stop at the first path that is deeper
than a project file can be.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.model.names import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KeyPath = tuple[str | int, ...]

# An unclosed string extends to the end of its line (or of the text): every alternative consumes
# what it has read, which keeps the scan linear on hostile text.
# Every repetition ends in something optional, so there is no backtracking. Possessive quantifiers
# are broken in the first releases of Python 3.11.
_TOKEN = re.compile(
    r'''
      (?P<multi> """(?:[^"\\]+|\\.|"{1,2}(?!"))*(?:"{3,5})?
               | \'\'\'(?:[^']+|'{1,2}(?!'))*(?:'{3,5})? )
    | (?P<text> "(?:[^"\\\n]+|\\[^\n])*"? | '[^'\n]*'? )
    | (?P<comment> \#[^\n]* )
    | (?P<newline> \n )
    | (?P<mark> [\[\]{}=,.] )
    | (?P<word> [^\s"'\#\[\]{}=,.]+ )
    ''',
    re.VERBOSE | re.DOTALL,
)
_BARE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHOWN_LENGTH = 60


@dataclass(slots=True)
class _Frame:
    """An open table, array or inline table; `index` counts an array's items."""

    path: KeyPath
    index: int | None = None
    parts: list[str] = field(default_factory=list)
    in_value: bool = False
    header: bool = False

    @property
    def value_path(self) -> KeyPath:
        return (*self.path, *self.parts) if self.index is None else (*self.path, self.index)


def scan_keys(text: str) -> Iterator[tuple[KeyPath, int]]:
    """The path of each key and array item with its line, in text order."""
    stack = [_Frame(())]
    line = 1
    for token in _TOKEN.finditer(text):
        kind, value = token.lastgroup, token.group()
        if kind == "newline":
            _end_line(stack)
        elif kind != "comment":
            yield from ((path, line) for path in _step(stack, value, is_mark=kind == "mark"))
        line += value.count("\n")


def _end_line(stack: list[_Frame]) -> None:
    if len(stack) == 1:
        stack[0].parts, stack[0].in_value = [], False


def _step(stack: list[_Frame], value: str, *, is_mark: bool) -> Iterator[KeyPath]:
    frame = stack[-1]
    if is_mark and value in "]}":
        if frame.header:
            stack[:] = [_Frame(tuple(frame.parts))]
            yield stack[0].path
        elif len(stack) > 1:
            stack.pop()
    elif frame.index is not None:
        yield from _step_array(stack, frame, value, is_mark=is_mark)
    elif frame.in_value:
        _step_value(stack, frame, value, is_mark=is_mark)
    else:
        yield from _step_key(stack, frame, value, is_mark=is_mark)


def _step_array(
    stack: list[_Frame], frame: _Frame, value: str, *, is_mark: bool
) -> Iterator[KeyPath]:
    if is_mark and value == ",":
        frame.index = (frame.index or 0) + 1
        return
    yield frame.value_path
    _open(stack, frame, value, is_mark=is_mark)


def _step_value(stack: list[_Frame], frame: _Frame, value: str, *, is_mark: bool) -> None:
    if is_mark and value == ",":
        frame.parts, frame.in_value = [], False
    else:
        _open(stack, frame, value, is_mark=is_mark)


def _open(stack: list[_Frame], frame: _Frame, value: str, *, is_mark: bool) -> None:
    if is_mark and value == "[":
        stack.append(_Frame(frame.value_path, index=0))
    elif is_mark and value == "{":
        stack.append(_Frame(frame.value_path))


def _step_key(
    stack: list[_Frame], frame: _Frame, value: str, *, is_mark: bool
) -> Iterator[KeyPath]:
    if not is_mark:
        frame.parts.append(_unquoted(value))
    elif value == "=":
        frame.in_value = True
        yield frame.value_path
    elif value == "[" and len(stack) == 1:
        # The second bracket of `[[` finds a header open and is ignored.
        stack.append(_Frame((), header=True))


def _unquoted(value: str) -> str:
    if value[0] == "'":
        return value.strip("'")
    if value[0] != '"':
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return value.strip('"')


def render_key(path: Sequence[str | int]) -> str:
    """The path as written in TOML, safe for a terminal: `capsule.setup[0]`."""
    shown = "".join(f"[{part}]" if isinstance(part, int) else f".{_part(part)}" for part in path)
    return shown.removeprefix(".")


def _part(part: str) -> str:
    if _BARE.fullmatch(part):
        return part
    short = part if len(part) <= _SHOWN_LENGTH else part[: _SHOWN_LENGTH - 3] + "..."
    # A backtick would end the literal that messages put keys in.
    return '"' + printable(short).replace('"', r"\"").replace("`", "'") + '"'
