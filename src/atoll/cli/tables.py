"""Tables as text: column widths, truncated cells, cell colours."""

from __future__ import annotations

from collections.abc import Sequence

_GAP = 2
"""Between two columns of a table on a terminal."""
_LEAST_WIDTH = 7


def render_columns(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    table = [[name.upper() for name in columns], *rows]
    widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in table)
    return "\n".join(line.rstrip() for line in lines)


def clip_cells(
    columns: Sequence[str], rows: Sequence[Sequence[str]], clip: Sequence[str], width: int
) -> list[list[str]]:
    """Truncates the cells of the columns in `clip`, widest first, until a row fits into `width`.

    Each cell keeps at least a few characters.
    """
    widths = _widths(columns, rows)
    clipped = [index for index, name in enumerate(columns) if name in clip]
    excess = table_width(columns, rows) - width
    while excess > 0 and clipped:
        widest = max(clipped, key=lambda index: widths[index])
        if widths[widest] <= _LEAST_WIDTH:
            break
        widths[widest] -= 1
        excess -= 1
    return [[_cut(cell, widths[i]) for i, cell in enumerate(row)] for row in rows]


def table_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The width of the table on a terminal without truncated cells."""
    widths = _widths(columns, rows)
    return sum(widths) + _GAP * len(widths)


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(columns, *rows, strict=True)]


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else cell[: width - 1] + "…"


def style_of(cell: str) -> str:
    word = cell.split(" ", maxsplit=1)[0]
    if word in ("ready", "running", "yes", "ok", "exited(0)"):
        return "green"
    if word in ("no", "lost", "failed", "missing") or word.startswith("exited("):
        return "red"
    return "yellow" if word in ("creating", "removing", "starting", "timeout", "stopped") else ""
