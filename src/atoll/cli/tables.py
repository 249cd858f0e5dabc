"""Tables as text: column widths as terminals show them, truncated cells, cell colours."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

_GAP = 2
"""Between two columns of a table on a terminal."""
_COMFORTABLE_WIDTH = 16
_LEAST_WIDTH = 7
_WIDE = frozenset("WF")
_GREEN = frozenset({"ready", "running", "yes", "ok", "passed", "good", "exited(0)"})
_RED = frozenset({"no", "lost", "failed", "missing", "error", "bad", "impossible"})
_YELLOW = frozenset({
    "creating", "removing", "starting", "timeout", "stopped", "flaky", "undecidable", "unknown",
})  # fmt: skip
_NO_WIDTH = frozenset({"Mn", "Me", "Cf"})


def display_width(text: str) -> int:
    """The number of columns that a terminal uses for `text`: two for East Asian wide characters
    and emoji, none for combining marks.
    """
    return len(text) if text.isascii() else sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.category(character) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1


def cut(text: str, width: int) -> str:
    """`text` itself if it fits into `width` columns, else its beginning and an ellipsis."""
    if display_width(text) <= width:
        return text
    used = 1
    for index, character in enumerate(text):
        used += _character_width(character)
        if used > width:
            return text[:index] + "…"
    return text


def render_columns(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    table = [[name.upper() for name in columns], *rows]
    widths = _widths(columns, rows)
    lines = ("  ".join(map(_padded, row, widths)) for row in table)
    return "\n".join(line.rstrip() for line in lines)


def clip_cells(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    clip: Sequence[str],
    width: int,
    leasts: Sequence[int] = (_COMFORTABLE_WIDTH, _LEAST_WIDTH),
) -> list[list[str]]:
    """Truncates the cells of the columns in `clip` until a row fits into `width`.

    The columns give way in the order of `clip`, first all of them down to the first of `leasts`.
    All other columns stay whole, even if the rows do not fit then.
    """
    widths = _widths(columns, rows)
    excess = table_width(columns, rows) - width
    for least in leasts:
        for name in (name for name in clip if name in columns):
            index = columns.index(name)
            spare = widths[index] - max(least, display_width(name))
            given = max(0, min(excess, spare))
            widths[index] -= given
            excess -= given
    return [[cut(cell, widths[i]) for i, cell in enumerate(row)] for row in rows]


def fit(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    clip: Sequence[str],
    drop: Sequence[str],
    width: int,
) -> tuple[Sequence[str], list[list[str]]]:
    """As `clip_cells`; where there are columns to `drop`, these are left out one after the other
    rather than that cells are cut to a few characters.
    """
    if not drop:
        return columns, clip_cells(columns, rows, clip, width)
    cells = clip_cells(columns, rows, clip, width, (_COMFORTABLE_WIDTH,))
    for name in drop:
        if table_width(columns, cells) <= width:
            break
        kept = [index for index, other in enumerate(columns) if other != name]
        columns = [columns[index] for index in kept]
        rows = [[row[index] for index in kept] for row in rows]
        cells = clip_cells(columns, rows, clip, width, (_COMFORTABLE_WIDTH,))
    return columns, cells


def table_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The width of the table on a terminal without truncated cells."""
    widths = _widths(columns, rows)
    return sum(widths) + _GAP * len(widths)


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(display_width, column)) for column in zip(columns, *rows, strict=True)]


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - display_width(cell))


def style_of(cell: str) -> str:
    word = cell.split(" ", maxsplit=1)[0]
    if word in _GREEN:
        return "green"
    if word in _RED or word.startswith("exited("):
        return "red"
    return "yellow" if word in _YELLOW else ""
