"""A comparison as tables of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from atoll.cli.output import Output, paint
from atoll.model.names import printable
from atoll.model.units import render_usd

if TYPE_CHECKING:
    from atoll.model.shapes import (
        CandidateEvidenceShape,
        ComparisonShape,
        FigureShape,
        MatrixCellShape,
        MatrixRowShape,
        ObservedCheckShape,
    )

BASE = "base"
_TREE_LENGTH = 8
_TASK_WIDTH = 76
_DROPPED = (
    "tree", "locks", "deps", "risky", "cost", "tokens", "files", "warnings", "time", "asserts",
    "skipped", "tests gone",
)  # fmt: skip
"""The columns that a narrow terminal does without, the first ones first."""
_MEANINGS = {
    "own": "-",
    "unknown": "not run",
    "impossible": "impossible",
}


def print_comparison(output: Output, data: ComparisonShape) -> None:
    output.item("comparison", None, _head(data) + "\n")
    columns, rows = candidate_table(data)
    # Of many figures the first ones are kept.
    drop = (*_DROPPED, *reversed(figure_names(data)))
    output.table("comparison", None, columns, rows, clip=("candidate", "checks"), drop=drop)
    if data["matrix"]["columns"]:
        output.item("comparison", None, "\ntests of … on the code of …\n")
        columns, rows = matrix_table(data)
        output.table("comparison", None, columns, rows, clip=("tests of",))
    if data["notes"]:
        lines = "".join(f"  {printable(note)}\n" for note in data["notes"])
        output.item("comparison", None, f"\n{lines}")
    if data["winner"] is None:
        output.note(f"hint: atoll pick {data['race']}")
    else:
        output.note(f"hint: atoll promote {data['winner']}")


def _head(data: ComparisonShape) -> str:
    task = printable(" ".join(data["task"].split()))
    if len(task) > _TASK_WIDTH:
        task = task[: _TASK_WIDTH - 1] + "…"
    state = "" if data["state"] == "finished" else f" ({data['state']})"
    lines = [paint(f"{data['race']}{state}", "bold") + (f": {task}" if task else "")]
    if data["winner"] is not None:
        lines.append(f"winner: {data['winner']}")
    return "\n".join(lines)


def candidate_table(data: ComparisonShape) -> tuple[list[str], list[list[str]]]:
    """The columns that have anything to show, and a row for the base and each candidate."""
    found = data["candidates"]
    figures = figure_names(data)
    table = {
        "#": [str(one["position"]) for one in found],
        "candidate": [one["name"] for one in found],
        "checks": [checks_word(one["checks"], one["state"]) for one in found],
        "base tests": [cell_word(one["base_tests"]) for one in found],
        "cross": [cross_word(one) for one in found],
        "judge": [judge_word(one) for one in found],
        **{name: [figure_word(data, one, name) for one in found] for name in figures},
        "lines": [lines_word(one) for one in found],
        "files": [_count(len(one["files"]), one) for one in found],
        "tests gone": [_count(one["deleted_tests"], one) for one in found],
        "skipped": [_count(one["skipped_tests"], one) for one in found],
        "asserts": [_count(-one["assertions_removed"], one) for one in found],
        "deps": [_count(len(one["dependencies"]), one) for one in found],
        "locks": [_count(len(one["locks"]), one) for one in found],
        "risky": [_count(len(one["risky"]), one) for one in found],
        "warnings": [warnings_word(one) for one in found],
        "time": [duration_word(one["took_s"]) for one in found],
        "tokens": [f"{one['tokens']:,}" if one["tokens"] else "-" for one in found],
        "cost": [cost_word(one["cost_usd"]) for one in found],
        "tree": [(one["tree"] or "-")[:_TREE_LENGTH] for one in found],
    }
    base = {
        "#": "",
        "candidate": BASE,
        "checks": checks_word(data["base"]["checks"], "done"),
        "tree": data["base"]["tree"][:_TREE_LENGTH],
        **{
            name: _number(data["base"]["figures"][name])
            for name in figures
            if name in data["base"]["figures"]
        },
    }
    always = {"#", "candidate", "checks", "lines", "time", "tree"}
    kept = [
        name
        for name, cells in table.items()
        if name in always or name in figures or any(cell not in ("-", "0") for cell in cells)
    ]
    rows = [[table[name][at] for name in kept] for at in range(len(found))]
    return kept, [[base.get(name, "-") for name in kept], *rows]


def figure_names(data: ComparisonShape) -> list[str]:
    every = [data["base"]["figures"], *(one["figures"] for one in data["candidates"])]
    return list(dict.fromkeys(name for figures in every for name in figures))


def best_figure(data: ComparisonShape, name: str) -> float | None:
    """The best value of a candidate that a rule may pick; None if it is not known which value is
    better, or if all are equal.
    """
    found = [
        one["figures"][name]
        for one in data["candidates"]
        if name in one["figures"] and one["obstacle"] is None
    ]
    values = {figure["value"] for figure in found}
    ways = {figure["better"] for figure in found}
    if len(values) < 2 or len(ways) != 1 or ways == {None}:
        return None
    return min(values) if ways == {"lower"} else max(values)


def figure_word(data: ComparisonShape, one: CandidateEvidenceShape, name: str) -> str:
    found = one["figures"].get(name)
    if found is None:
        return "-"
    is_best = one["obstacle"] is None and found["value"] == best_figure(data, name)
    mark = "*" if is_best else ""
    return _number(found) + mark


def _number(found: FigureShape) -> str:
    return f"{found['value']:.6g}" + (f" {found['unit']}" if found["unit"] else "")


def checks_word(checks: Sequence[ObservedCheckShape], state: str) -> str:
    """`passed`, or what is wrong first: `failed: test`."""
    if state not in ("done", "failed"):
        return state
    if not checks or (state == "failed" and all(check["status"] is None for check in checks)):
        return "failed" if state == "failed" else "-"
    bad = [check for check in checks if check["status"] != "passed"]
    if not bad:
        return "passed"
    word = bad[0]["status"] or "not run"
    more = f" +{len(bad) - 1}" if len(bad) > 1 else ""
    return word if len(checks) == 1 else f"{word}: {bad[0]['name']}{more}"


def cell_word(status: str) -> str:
    return "-" if status == "unknown" else status


def cross_word(one: CandidateEvidenceShape) -> str:
    cross = one["crosstests"]
    return "-" if cross is None else f"{cross['passed']}/{cross['ran']}"


def judge_word(one: CandidateEvidenceShape) -> str:
    if one["judged"] is None:
        return "-"
    return f"{one['judged']}" + (" undecided" if one["undecided"] else "")


def lines_word(one: CandidateEvidenceShape) -> str:
    if one["tree"] is None:
        return "-"
    return f"+{one['lines_added']:,} -{one['lines_deleted']:,}"


def _count(number: int, one: CandidateEvidenceShape) -> str:
    return "-" if one["tree"] is None else f"{number:,}"


def warnings_word(one: CandidateEvidenceShape) -> str:
    found = one["new_warnings"]
    return "-" if found is None else f"+{found:,}" if found else "0"


def cost_word(cost_usd: float | None) -> str:
    return "-" if cost_usd is None else render_usd(cost_usd)


def duration_word(took_s: float | None) -> str:
    if took_s is None:
        return "-"
    if took_s < 10:
        return f"{took_s:.1f} s"
    minutes, seconds = divmod(round(took_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


def matrix_table(data: ComparisonShape) -> tuple[list[str], list[list[str]]]:
    numbers = {one["name"]: one["position"] for one in data["candidates"]}

    def label(names: Sequence[str]) -> str:
        return "=".join(f"#{numbers[name]}" for name in names if name in numbers)

    matrix = data["matrix"]
    columns = ["tests of", *(label(column["names"]) for column in matrix["columns"])]
    rows = [[suite_name(row), *map(_cell, row["cells"])] for row in matrix["rows"]]
    return columns, rows


def suite_name(row: MatrixRowShape) -> str:
    return ", ".join(row["names"]) + ("" if row["counts"] else " (not counted)")


def _cell(cell: MatrixCellShape) -> str:
    word = _MEANINGS.get(cell["status"], cell["status"])
    total = cell["tests_passed"] + cell["tests_failed"]
    if cell["status"] == "failed" and cell["tests_failed"]:
        return f"{word} {cell['tests_failed']}/{total}"
    return word
