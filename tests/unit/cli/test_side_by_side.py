"""Unified diffs as rows with two sides, also hostile and cut ones."""

from __future__ import annotations

import difflib

from hypothesis import given
from hypothesis import strategies as st

from atoll.cli.side_by_side import FileDiff, parse_patch, split_common

PATCH = """\
diff --git a/x.py b/x.py
index 1..2 100644
--- a/x.py
+++ b/x.py
@@ -1,4 +1,4 @@ def f():
 one
--- a/y
-gone
+++ b/z
 two
+diff --git a/fake b/fake
\\ No newline at end of file
diff --git a/new.sh b/new.sh
new file mode 100755
index 0..3
--- /dev/null
+++ b/new.sh
@@ -0,0 +1 @@
+hello
diff --git a/pic b/pic
index 4..5 100644
Binary files a/pic and b/pic differ
diff --git "a/t\\303\\244\\n" "b/t\\303\\244\\n"
old mode 100644
new mode 100755
"""


def sides(file: FileDiff) -> list[tuple[str | None, str | None]]:
    return [
        (row.left and row.left.text, row.right and row.right.text)
        for hunk in file.hunks
        for row in hunk.rows
    ]


def test_lines_that_look_like_headers_are_content() -> None:
    files = parse_patch(PATCH)
    assert [file.path for file in files] == ["x.py", "new.sh", "pic", '"t\\303\\244\\n"']
    assert sides(files[0]) == [
        ("one", "one"),
        ("-- a/y", "++ b/z"),
        ("gone", None),
        ("two", "two"),
        (None, "diff --git a/fake b/fake"),
    ]
    assert files[0].hunks[0].title == "def f():"
    assert files[1].headers == ("new file mode 100755",)
    assert files[2].headers == ("Binary files a/pic and b/pic differ",)
    assert not files[3].hunks


def test_a_cut_patch_has_what_is_there() -> None:
    for length in range(len(PATCH)):
        for file in parse_patch(PATCH[:length]):
            assert len(sides(file)) <= 5


LINES = st.lists(st.sampled_from(["a", "b", "-- a/x", "@@ -1 +1 @@", "diff --git a/q b/q", ""]))


@given(LINES, LINES)
def test_every_line_is_on_its_side(old: list[str], new: list[str]) -> None:
    body = list(difflib.unified_diff(old, new, "a/f", "b/f", lineterm="", n=len(old) + len(new)))
    text = "\n".join(["diff --git a/f b/f", *body, ""])
    files = parse_patch(text)
    assert [file.path for file in files] == ["f"] or not body
    if body:
        rows = sides(files[0])
        assert [left for left, _ in rows if left is not None] == old
        assert [right for _, right in rows if right is not None] == new


@given(st.text(max_size=9), st.text(max_size=9))
def test_common_ends_do_not_overlap(left: str, right: str) -> None:
    start, end = split_common(left, right)
    assert start + end <= min(len(left), len(right))
    assert left[:start] == right[:start]
    assert left[len(left) - end :] == right[len(right) - end :]
