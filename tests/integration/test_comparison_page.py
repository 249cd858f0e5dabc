"""The page of a comparison in a real browser: hostile content is text, and nothing else happens."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import sync_playwright

from atoll.cli import comparison_text, tables
from atoll.cli.comparison_html import render_page
from atoll.cli.output import Output
from persons import require

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.model.shapes import CandidateEvidenceShape, ComparisonShape

EVIL = (
    '"><script>window.hit = 1</script><img src=x onerror="window.hit = 2">'
    "</style></title><svg onload=window.hit=3>'\x1b[31m\u202e\x00 http://127.0.0.1:9/beacon"
)
PATCH = f"""\
diff --git a/a b/a
--- a/a
+++ b/a
@@ -1,2 +1,3 @@ {EVIL}
 </div></details>
-<iframe src="http://127.0.0.1:9/"></iframe>
+<form action="http://127.0.0.1:9/"><input onfocus=window.hit=4 autofocus></form>
+{"long " * 900}
diff --git "a/{EVIL}" "b/{EVIL}"
new file mode 100644
--- /dev/null
+++ "b/<b onmouseover=window.hit=5>"
@@ -0,0 +1,700 @@
""" + "".join(f"+line {number}\n" for number in range(700))


def candidate(name: str, position: int) -> CandidateEvidenceShape:
    check: Any = {
        "name": EVIL, "status": "failed", "message": EVIL, "took_s": 1.0, "tests_passed": 1,
        "tests_failed": 1, "tests_skipped": 0,
    }  # fmt: skip
    figure: Any = {"name": EVIL, "value": 1.5 * position, "unit": EVIL, "better": "lower"}
    return {
        "name": name, "position": position, "state": "done", "reason": EVIL, "agent": EVIL,
        "model": EVIL, "graft": [EVIL], "commit": "c" * 40, "tree": str(position) * 40,
        "same_tree": [], "checks": [check], "figures": {EVIL: figure}, "base_tests": "failed",
        "crosstests": {"passed": 1, "ran": 2},
        "files": [{"path": EVIL, "status": "added", "added": 1, "deleted": 1, "binary": False}],
        "lines_added": 3, "lines_deleted": 1, "changed_tests": [EVIL], "deleted_tests": 1,
        "deleted_test_files": [EVIL], "skipped_tests": 1, "assertions_removed": 1,
        "dependencies": [EVIL], "locks": [EVIL], "risky": [EVIL, "a\udcff"], "new_warnings": 2,
        "took_s": 75.0, "tokens": 1200, "cost_usd": 0.5, "judged": 1, "undecided": True,
        "obstacle": None, "removed": False,
    }  # fmt: skip


def comparison() -> ComparisonShape:
    cell: Any = {
        "status": "failed", "tree": None, "tests_passed": 0, "tests_failed": 0, "reason": EVIL,
    }  # fmt: skip
    own: Any = {**cell, "status": "own"}
    return {
        "race": EVIL, "task": EVIL * 3, "state": "running", "created_at": 0.0, "winner": "one",
        "rule": EVIL,
        "base": {"commit": "b" * 40, "tree": "0" * 40, "checks": [], "figures": {}, "passes": True},
        "candidates": [candidate("one", 1), candidate(EVIL, 2)],
        "matrix": {
            "columns": [{"tree": "1" * 40, "names": ["one"]}, {"tree": "2" * 40, "names": [EVIL]}],
            "rows": [
                {"names": ["base"], "files": [], "counts": True, "cells": [cell, cell]},
                {"names": [EVIL], "files": [EVIL], "counts": False, "cells": [cell, own]},
            ],
        },
        "judgement": None, "notes": [EVIL, f"`{EVIL}` fails", "`odd"],
    }  # fmt: skip


def page_text() -> str:
    return render_page(comparison(), {"one": {"diff": PATCH, "complete": False}})


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")], ids=str
)
def test_hostile_page_runs_nothing_and_fits(tmp_path: Path, width: int, scheme: Any) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_text(), encoding="utf-8")
    seen: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=require("chromium"),
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
        )
        try:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.on("console", lambda message: seen.append(message.text))
            page.on("pageerror", lambda error: seen.append(str(error)))
            page.on("dialog", lambda dialog: seen.append(dialog.message))
            page.on("request", lambda request: seen.append(request.url))
            page.goto(path.as_uri())
            for summary in page.locator("summary").all():
                summary.hover()
                if summary.locator("..").get_attribute("open") is None:
                    summary.click()
            assert page.evaluate("window.hit") is None
            tags = page.evaluate(
                "[...new Set([...document.body.querySelectorAll('*')].map(e => e.localName))]"
            )
            assert not set(tags) & {"script", "img", "svg", "iframe", "form", "input", "a"}
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            shown = page.inner_text("body")
        finally:
            browser.close()
    assert seen == [path.as_uri()]
    assert '<iframe src="http://127.0.0.1:9/"></iframe>' in shown
    assert "<script>window.hit = 1</script>" in shown
    assert "only the first 600 lines are shown" in shown
    assert "too large for this page" in shown
    assert "failed" in shown
    assert not set("\x1b\u202e\x00") & set(shown)


def test_page_has_no_markup_of_others() -> None:
    text = page_text()
    assert text.count("<script") == text.count("<img") == text.count("<svg") == 0
    assert text.count("</style>") == 1
    assert "default-src 'none'" in text
    assert not set("\x1b\u202e\x00") & set(text)
    assert text.encode()


def test_tables_have_no_control_characters() -> None:
    columns, rows = comparison_text.candidate_table(comparison())
    assert len({len(row) for row in [columns, *rows]}) == 1
    assert comparison_text.matrix_table(comparison())[0] == ["tests of", "#1", "#2"]


def test_only_what_a_rule_may_pick_is_marked_as_best() -> None:
    data = comparison()
    first, second = data["candidates"]
    third = {**candidate("three", 1), "obstacle": "it changes nothing"}
    data["candidates"].append(third)  # type: ignore[arg-type]
    shown: Any = (first, second, third)
    words = [comparison_text.figure_word(data, one, EVIL) for one in shown]
    assert [word.endswith("*") for word in words] == [True, False, False]


def test_figures_leave_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    data = comparison()
    for one in data["candidates"]:
        one["name"] = f"candidate-{one['position']}"
        one["figures"] = {
            f"figure-{number}": {
                "name": f"figure-{number}", "value": 1000.5, "unit": "ms", "better": "lower",
            }
            for number in range(9)
        }  # fmt: skip
    columns, rows = comparison_text.candidate_table(data)
    names = comparison_text.figure_names(data)
    dropped: list[str] = []

    def look(*_: Any, drop: Any = (), **__: Any) -> None:
        dropped.extend(drop)

    monkeypatch.setattr(Output, "table", look)
    comparison_text.print_comparison(Output(), data)
    kept, cut = tables.fit(columns, rows, ("candidate", "checks"), dropped, 80)
    assert tables.table_width(kept, cut) <= 80
    assert "lines" in kept
    assert [name for name in names if name in kept] == names[: len(set(names) & set(kept))]
