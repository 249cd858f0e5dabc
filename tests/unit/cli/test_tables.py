"""Tables on terminals: cells are cut so that a row fits, and the cut is visible."""

from __future__ import annotations

import pytest

from atoll.cli.tables import clip_cells, table_width

COLUMNS = ("project", "name", "level", "state", "changed", "commits", "running", "disk", "age")
ROWS = [
    ["use-vite-long", "k-kill1-0", "sandbox", "removing", "4", "+1 -2", "npm run dev --very-long",
     "12.5 MB", "15m"],
]  # fmt: skip


@pytest.mark.parametrize("width", [80, 100, 200])
def test_rows_fit_and_only_named_columns_are_cut(width):
    clip = ("project", "name", "running")
    rows = clip_cells(COLUMNS, ROWS, clip, width)
    assert table_width(COLUMNS, rows) <= width
    for name, cell, before in zip(COLUMNS, rows[0], ROWS[0], strict=True):
        assert cell == before or (name in clip and cell.endswith("\N{HORIZONTAL ELLIPSIS}"))
    assert (rows == ROWS) is (width == 200)
