"""Tables on terminals: cells are cut so that a row fits, and the cut is visible."""

from __future__ import annotations

import pytest

from atoll.cli.tables import clip_cells, cut, display_width, fit, render_columns, table_width

COLUMNS = ("project", "name", "level", "state", "changed", "commits", "running", "disk", "age")
ROWS = [
    ["use-vite-long", "k-kill1-0", "sandbox", "removing", "4", "+1 -2", "npm run dev --very-long",
     "12.5 MB", "15m"],
]  # fmt: skip


@pytest.mark.parametrize("width", [80, 100, 200])
def test_rows_fit_and_only_named_columns_are_cut(width):
    clip = ("running", "project", "name")
    rows = clip_cells(COLUMNS, ROWS, clip, width)
    assert table_width(COLUMNS, rows) <= width
    for name, cell, before in zip(COLUMNS, rows[0], ROWS[0], strict=True):
        assert cell == before or (name in clip and cell.endswith("\N{HORIZONTAL ELLIPSIS}"))
    assert (rows == ROWS) is (width == 200)


@pytest.mark.parametrize(("width", "columns"), [
    (120, ["capsule", "cost", "task", "last line"]),
    (48, ["capsule", "cost", "task"]),
    (30, ["capsule", "cost"]),
])  # fmt: skip
def test_columns_give_way_in_order(width, columns):
    rows = [["three-tries-at-a-1", "$1234.50", "Fix the\u00a0" * 8, "all of it is done " * 4]]
    clip = drop = ("last line", "task")
    names, cells = fit(["capsule", "cost", "task", "last line"], rows, clip, drop, width)
    assert names == columns
    assert cells[0][:2] == rows[0][:2]
    assert width == 30 or table_width(names, cells) <= width


@pytest.mark.parametrize(("text", "width"), [
    ("plain", 5), ("日本語", 6), ("\N{PARTY POPPER}!", 3), ("e\u0301te\u0301", 3), ("é", 1),
    ("", 0),
])  # fmt: skip
def test_widths_are_those_of_a_terminal(text, width):
    assert display_width(text) == width


def test_rows_with_wide_characters_are_aligned():
    rendered = render_columns(("task", "age"), [["日本語のテスト", "1s"], ["plain", "22s"]])
    before = [line.rstrip().rpartition(" ")[0] for line in rendered.split("\n")]
    assert {display_width(line) for line in before} == {15}
    assert cut("日本語のテスト", 6) == "日本…"
    assert display_width(cut("日本語のテスト", 7)) <= 7
