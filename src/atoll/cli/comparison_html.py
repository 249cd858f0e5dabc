"""A comparison as one self-contained HTML page: no script, no request to anywhere.

Everything in it is escaped: names, paths, diffs and messages come from commits and agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from atoll.cli import comparison_text as text
from atoll.cli import phrases
from atoll.cli.harmless import clean
from atoll.cli.side_by_side import DiffRow, FileDiff, Side, parse_patch, split_common
from atoll.model.names import printable
from atoll.model.units import counted

if TYPE_CHECKING:
    from atoll.model.shapes import (
        CandidateDiffShape,
        CandidateEvidenceShape,
        ComparisonShape,
        MatrixCellShape,
        MatrixRowShape,
        ObservedCheckShape,
    )

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_FILE_ROWS = 600
"""Of one file; the rest is cut with a note."""
_LINE_CHARACTERS = 2000
_MOST_FILES = 200
_OPEN_ROWS = 40
"""A file with more changed rows is folded."""
_SHORT = 8
_STYLE = """
:root { color-scheme: light dark; --line: #d8dbe2; --dim: #5d6572; --back: #fff; --box: #f6f7fa;
  --text: #1c2128; --link: #1f5fd0; --good: #16702f; --good-back: #dcf5e3; --bad: #b4232c;
  --bad-back: #fde3e3; --warn: #865a00; --warn-back: #fcf0cf; --none-back: #eef0f4;
  --add: #e3f8e8; --add-mark: #a6e8b8; --del: #fdebeb; --del-mark: #f6bcbc; }
@media (prefers-color-scheme: dark) { :root { --line: #333b47; --dim: #9aa5b4; --back: #0f1318;
  --box: #171c23; --text: #dfe5ed; --link: #79b2ff; --good: #6fd68a; --good-back: #12331d;
  --bad: #ff938b; --bad-back: #43191b; --warn: #eabf5a; --warn-back: #3a2d0c; --none-back: #1d232c;
  --add: #11291a; --add-mark: #1f5a34; --del: #321819; --del-mark: #6d2a2c; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 90rem; margin: 0 auto; padding: 1.6rem clamp(.8rem, 2.5vw, 2.5rem) 5rem; }
h1 { font-size: 1.7rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .8rem; }
h3 { font-size: 1.05rem; margin: 0; overflow-wrap: anywhere; }
p { margin: .3rem 0; } .dim, time { color: var(--dim); } .task { font-size: 1.05rem;
  white-space: pre-wrap; overflow-wrap: anywhere; max-width: 60rem; }
code, .mono { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .88em; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .5rem .8rem; text-align: left; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
tr:last-child > th, tr:last-child > td { border-bottom: 0; }
thead th { background: var(--box); color: var(--dim); font-size: .76rem; font-weight: 600;
  text-transform: uppercase; letter-spacing: .03em; }
tbody th { font-weight: 600; position: sticky; left: 0; background: var(--back); }
thead th:first-child { position: sticky; left: 0; }
tr.base th, tr.base td { background: var(--box); color: var(--dim); }
tr.winner th { box-shadow: inset 4px 0 0 var(--good); }
.num { text-align: right; } .best { font-weight: 700; color: var(--good); }
.pill { display: inline-block; padding: .05rem .55rem; border-radius: 99px; font-size: .86em;
  font-weight: 600; background: var(--none-back); color: var(--dim); }
.good { background: var(--good-back); color: var(--good); }
.bad { background: var(--bad-back); color: var(--bad); }
.warn { background: var(--warn-back); color: var(--warn); }
.none { background: var(--none-back); color: var(--dim); }
.matrix td { text-align: center; font-weight: 600; border-left: 1px solid var(--line); }
.matrix thead th { text-transform: none; letter-spacing: 0; font-size: .85rem; text-align: center; }
.matrix thead th:first-child { text-align: left; }
.matrix td small, .matrix th small { display: block; font-weight: 400; font-size: .8em; }
.matrix td small { opacity: .85; max-width: 14rem; margin: 0 auto; overflow: hidden;
  text-overflow: ellipsis; }
.matrix tr.uncounted td, .matrix tr.uncounted th { opacity: .6; }
ul.notes { margin: 1rem 0 0; padding: .8rem 1rem .8rem 2rem; background: var(--warn-back);
  color: var(--warn); border-radius: 10px; } ul.notes li { overflow-wrap: anywhere; }
section.candidate { margin-top: 1.4rem; border: 1px solid var(--line); border-radius: 10px; }
section.candidate > header { padding: .8rem 1rem; background: var(--box);
  border-radius: 10px 10px 0 0; display: flex; flex-wrap: wrap; gap: .3rem .8rem;
  align-items: baseline; }
section.candidate > div { padding: .4rem 1rem 1rem; }
dl { display: flex; flex-wrap: wrap; gap: .5rem 2rem; margin: .5rem 0 .8rem; }
dt { font-size: .76rem; color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; }
details { border: 1px solid var(--line); border-radius: 8px; margin: .5rem 0; }
summary { cursor: pointer; padding: .4rem .8rem; overflow-wrap: anywhere; }
.plus { color: var(--good); } .minus { color: var(--bad); }
.diff { border-top: 1px solid var(--line); font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo,
  Consolas, monospace; overflow: hidden; border-radius: 0 0 8px 8px; }
.r { display: grid; grid-template-columns: 3.4em 1fr 3.4em 1fr; }
.r > i { font-style: normal; color: var(--dim); text-align: right; padding: 0 .6em 0 .3em;
  user-select: none; } .r > i + span:not(:last-child) { border-right: 1px solid var(--line); }
.r > span { white-space: pre-wrap; overflow-wrap: anywhere; padding: 0 .5em; min-width: 0; }
.r > .d { background: var(--del); } .r > .a { background: var(--add); }
.r > .e { background: var(--none-back); }
.d mark { background: var(--del-mark); } .a mark { background: var(--add-mark); }
mark { color: inherit; border-radius: 2px; }
.h, .n { padding: .15em .8em; background: var(--box); color: var(--dim); overflow-wrap: anywhere; }
@media (max-width: 700px) { body { font-size: 14px; } h1 { font-size: 1.35rem; }
  th, td { padding: .4rem .55rem; } .r { grid-template-columns: 3.4em 1fr; }
  .r > i + span:not(:last-child) { border-right: 0; }
  .r > .e, .r > .same, .r > i.e { display: none; }
  section.candidate > div { padding: .2rem .5rem .6rem; } }
@media print { details { break-inside: avoid; } body { max-width: none; } }
"""
_LOOKS = {
    "passed": "good", "failed": "bad", "error": "bad", "timeout": "bad", "impossible": "bad",
    "flaky": "warn", "unknown": "none", "own": "none",
}  # fmt: skip
_WORDS = {"own": "own tests", "unknown": "not run", "impossible": "cannot be combined"}
_NUMBERS = frozenset({"checks", "base tests", "candidate", "judge", "tree"})
"""The columns that are no numbers."""


def render_page(data: ComparisonShape, diffs: Mapping[str, CandidateDiffShape]) -> str:
    """`diffs` are those of the candidates against the base, by name."""
    title = f"Race {_safe(data['race'])}"
    winner = data["winner"]
    picked = "" if winner is None else f" · winner: <b>{_safe(winner)}</b>"
    state = "" if data["state"] == "finished" else f" · {_safe(data['state'])}"
    head = (
        f"<header><h1>{title}</h1>"
        f'<p class="task">{_safe(data["task"])}</p>'
        f'<p class="dim">{counted(len(data["candidates"]), "candidate")} from '
        f"<code>{_safe(data['base']['commit'][:12])}</code>, "
        f"{phrases.moment(data['created_at'])}{state}{picked}</p></header>"
    )
    notes = "".join(f"<li>{_marked(note)}</li>" for note in data["notes"])
    parts = [
        head,
        f'<ul class="notes">{notes}</ul>' if notes else "",
        "<h2>Evidence</h2>",
        _evidence(data),
        _matrix(data),
        "<h2>Changes</h2>",
        *(_candidate(data, one, diffs.get(one["name"])) for one in _distinct(data)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(filter(None, parts))
        + "\n</body></html>"
    )


def _evidence(data: ComparisonShape) -> str:
    columns, rows = text.candidate_table(data)
    # The matrix has names here: no numbers are needed.
    columns, rows = columns[1:], [row[1:] for row in rows]
    head = "".join(f'<th{_numeric(name)} scope="col">{_safe(name)}</th>' for name in columns)
    every: list[CandidateEvidenceShape | None] = [None, *data["candidates"]]
    body = []
    for one, row in zip(every, rows, strict=True):
        cells = dict(zip(columns, row, strict=True))
        is_winner = one is not None and one["name"] == data["winner"]
        look = ' class="base"' if one is None else ' class="winner"' if is_winner else ""
        if is_winner:
            cells["candidate"] += " (winner)"
        inner = "".join(_evidence_cell(data, name, cells[name]) for name in columns)
        body.append(f"<tr{look}>{inner}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _numeric(name: str) -> str:
    return "" if name in _NUMBERS else ' class="num"'


def _evidence_cell(data: ComparisonShape, column: str, cell: str) -> str:
    if column == "candidate":
        return f'<th scope="row">{_safe(cell)}</th>'
    if column in ("checks", "base tests") and cell != "-":
        look = _LOOKS.get(cell.partition(":")[0].partition(" ")[0], "none")
        return f'<td><span class="pill {look}">{_safe(cell)}</span></td>'
    if column == "tree":
        return f"<td><code>{_safe(cell)}</code></td>"
    if column in text.figure_names(data) and cell.endswith("*"):
        return f'<td class="num best">{_safe(cell[:-1])} <small>best</small></td>'
    return f"<td{_numeric(column)}>{_safe(cell)}</td>"


def _matrix(data: ComparisonShape) -> str:
    matrix = data["matrix"]
    if not matrix["rows"] or not matrix["columns"]:
        return ""
    head = "".join(
        f'<th scope="col">{_safe(", ".join(column["names"]))}'
        f"<small><code>{_safe(column['tree'][:_SHORT])}</code></small></th>"
        for column in matrix["columns"]
    )
    body = "".join(map(_matrix_row, matrix["rows"]))
    return (
        "<h2>Cross-tests</h2>"
        '<p class="dim">Each row has the tests of one candidate, each column the code of one. The '
        "first row has the tests of the base, as they were before any candidate changed them.</p>"
        '<div class="scroll"><table class="matrix"><thead><tr>'
        f'<th scope="col">tests of … on the code of …</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _matrix_row(row: MatrixRowShape) -> str:
    files = row["files"]
    more = "" if not files else f"<small>{counted(len(files), 'changed file')}</small>"
    look = "" if row["counts"] else ' class="uncounted"'
    names = _safe(text.suite_name(row))
    cells = "".join(map(_matrix_cell, row["cells"]))
    return f'<tr{look}><th scope="row">{names}{more}</th>{cells}</tr>'


def _matrix_cell(cell: MatrixCellShape) -> str:
    status = cell["status"]
    total = cell["tests_passed"] + cell["tests_failed"]
    small = f"{cell['tests_passed']} of {total}" if total else ""
    if status in ("failed", "error", "impossible", "flaky") and not small:
        small = cell["reason"]
    detail = f"<small>{_safe(small)}</small>" if small else ""
    look = _LOOKS.get(status, "none")
    tip = f' title="{_safe(cell["reason"])}"' if cell["reason"] else ""
    return f'<td class="{look}"{tip}>{_safe(_WORDS.get(status, status))}{detail}</td>'


def _distinct(data: ComparisonShape) -> list[CandidateEvidenceShape]:
    """The candidates, of equal trees only the first."""
    firsts = {one["tree"] or one["name"]: one for one in reversed(data["candidates"])}
    return [one for one in data["candidates"] if firsts[one["tree"] or one["name"]] is one]


def _candidate(
    data: ComparisonShape, one: CandidateEvidenceShape, diff: CandidateDiffShape | None
) -> str:
    label = " · ".join(filter(None, (one["agent"], one["model"], " ".join(one["graft"]))))
    winner = '<span class="pill good">winner</span>' if one["name"] == data["winner"] else ""
    twins = one["same_tree"]
    same = f'<span class="dim">the same tree as {_safe(", ".join(twins))}</span>' if twins else ""
    lines = (
        f'<span class="mono"><span class="plus">+{one["lines_added"]:,}</span> '
        f'<span class="minus">-{one["lines_deleted"]:,}</span></span> '
        f'<span class="dim">{counted(len(one["files"]), "file")}</span>'
    )
    head = (
        f"<header><h3>{_safe(one['name'])}</h3>{winner}"
        f'<span class="dim">{_safe(label)}</span>{lines if one["tree"] else ""}{same}</header>'
    )
    reason = f"<p>{_safe(one['state'])}: {_safe(one['reason'])}</p>" if one["reason"] else ""
    checks = "".join(map(_check, one["checks"]))
    command = f"atoll compare {data['race']} --diff base {one['name']}"
    changes = _diff(one, diff, command)
    body = _facts(one) + reason + (f"<p>{checks}</p>" if checks else "") + changes
    return f'<section class="candidate">{head}<div>{body}</div></section>'


def _check(check: ObservedCheckShape) -> str:
    status = check["status"] or "unknown"
    message = f": {check['message']}" if check["message"] else ""
    tests = check["tests_passed"]
    number = "" if tests is None else f", {counted(tests, 'test')}"
    words = f"{check['name']} {_WORDS.get(status, status)}{number}{message}"
    return f'<span class="pill {_LOOKS.get(status, "none")}">{_safe(words)}</span> '


def _facts(one: CandidateEvidenceShape) -> str:
    facts = {
        "Tree": one["tree"] or "",
        "Commit": one["commit"] or "",
        "Deleted files of tests": ", ".join(one["deleted_test_files"]),
        "Tests of the base that it changes": ", ".join(one["changed_tests"]),
        "Dependencies": ", ".join(one["dependencies"]),
        "Lock files": ", ".join(one["locks"]),
        "Can run code on your machine": ", ".join(one["risky"]),
    }
    rows = "".join(
        f"<div><dt>{name}</dt><dd><code>{_safe(words)}</code></dd></div>"
        for name, words in facts.items()
        if words
    )
    return f"<dl>{rows}</dl>" if rows else ""


def _diff(one: CandidateEvidenceShape, diff: CandidateDiffShape | None, command: str) -> str:
    """`command` shows the whole difference."""
    if diff is None or not diff["diff"].strip():
        return '<p class="dim">It changes nothing.</p>' if one["tree"] else ""
    files = parse_patch(clean(diff["diff"].encode(errors="replace")))
    shown = "".join(map(_file, files[:_MOST_FILES]))
    if len(files) > _MOST_FILES or not diff["complete"]:
        shown += (
            '<p class="dim">The changes are too large for this page and are cut here: '
            f"<code>{_safe(command)}</code></p>"
        )
    return shown


def _file(file: FileDiff) -> str:
    rows = [row for hunk in file.hunks for row in hunk.rows]
    added = sum(row.is_changed and row.right is not None for row in rows)
    deleted = sum(row.is_changed and row.left is not None for row in rows)
    numbers = f'<span class="plus">+{added}</span> <span class="minus">-{deleted}</span>'
    is_open = " open" if len(rows) <= _OPEN_ROWS else ""
    headers = "".join(f'<div class="h">{_safe(header)}</div>' for header in file.headers)
    return (
        f"<details{is_open}><summary><code>{_safe(file.path)}</code> "
        f'<span class="mono">{numbers}</span></summary>'
        f'<div class="diff">{headers}{_hunks(file)}</div></details>'
    )


def _hunks(file: FileDiff) -> str:
    shown: list[str] = []
    left = _FILE_ROWS
    for hunk in file.hunks:
        if left <= 0:
            break
        first = hunk.rows[0] if hunk.rows else None
        at = "" if first is None else f"line {(first.right or first.left or Side(0, '')).number}"
        title = f" · {_safe(hunk.title)}" if hunk.title else ""
        shown.append(f'<div class="h">{at}{title}</div>')
        shown += map(_row, hunk.rows[:left])
        left -= len(hunk.rows)
    if left < 0 or sum(len(hunk.rows) for hunk in file.hunks) > _FILE_ROWS:
        shown.append(f'<div class="n">only the first {_FILE_ROWS} lines are shown</div>')
    return "".join(shown)


def _row(row: DiffRow) -> str:
    if not row.is_changed and row.left is not None and row.right is not None:
        line = _line(row.left.text)
        return (
            f'<div class="r"><i>{row.left.number}</i><span>{line}</span>'
            f'<i class="same">{row.right.number}</i><span class="same">{line}</span></div>'
        )
    one, other = row.left, row.right
    start = end = 0
    if one is not None and other is not None:
        start, end = split_common(one.text, other.text)
    return (
        f'<div class="r">{_side(one, "d", start, end, has_other=other is not None)}'
        f"{_side(other, 'a', start, end, has_other=one is not None)}</div>"
    )


def _side(side: Side | None, look: str, start: int, end: int, *, has_other: bool) -> str:
    if side is None:
        return '<i class="e"></i><span class="e"></span>'
    is_similar = has_other and (start or end) and len(side.text) <= _LINE_CHARACTERS
    if not is_similar:
        line = _line(side.text)
    else:
        until = len(side.text) - end
        middle = side.text[start:until]
        mark = f"<mark>{_safe(middle)}</mark>" if middle else ""
        line = f"{_safe(side.text[:start])}{mark}{_safe(side.text[until:])}"
    return f'<i>{side.number}</i><span class="{look}">{line}</span>'


def _line(words: str) -> str:
    cut = words[:_LINE_CHARACTERS]
    return _safe(cut) + ("…" if len(words) > len(cut) else "")


def _marked(note: str) -> str:
    """What is in back quotes is code."""
    parts = _safe(note).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(parts))


def _safe(words: str | Sequence[str]) -> str:
    joined = words if isinstance(words, str) else " ".join(words)
    shown = clean(joined.encode(errors="surrogateescape"))
    return escape("".join(c if c in "\t\n" else printable(c) for c in shown), quote=True)
