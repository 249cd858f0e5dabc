"""`atoll compare`: what was observed of the candidates of a race."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.cli import comparison_text
from atoll.cli.diff import painted_patch
from atoll.cli.frame import Frame, verb
from atoll.cli.output import stdout_is_terminal
from atoll.engine import shapes
from atoll.model.errors import SpecError

if TYPE_CHECKING:
    from atoll.engine.race.results import RaceResults

_PAGE_BYTES = 3_000_000
"""Of the diffs of all candidates together."""
_LEAST_BYTES = 60_000


@click.command("compare")
@click.argument("race")
@click.option(
    "--diff",
    "pair",
    nargs=2,
    metavar="A B",
    help="Show the difference between two candidates, or between `base` and a candidate.",
)
@click.option("--stat", is_flag=True, help="With --diff: only the changed lines per file.")
@click.option(
    "--html",
    "page",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Print one self-contained HTML page, or write it to FILE.",
)
@verb
def command(
    frame: Frame, race: str, *, pair: tuple[str, str] | None, stat: bool, page: str | None
) -> None:
    """Compare the candidates of RACE by what was observed of their exact trees.

    BASE TESTS is what the tests of the base say about a candidate, also those that it changed or
    deleted. CROSS is how many suites of tests pass: those of the base and of the other candidates.
    The best figure of each column is marked with `*`.
    """
    results = frame.project().races.require(race).results
    if pair is not None and page is not None:
        raise SpecError("`--diff` and `--html` are both given", hint="omit one of them")
    if stat and pair is None:
        raise SpecError("`--stat` belongs to `--diff`", hint=f"atoll compare {race} --diff A B")
    if pair is not None:
        _print_diff(frame, results, pair, stat=stat)
    elif page is not None:
        _print_page(frame, results, page)
    else:
        evidence = results.compare()
        data = shapes.comparison(evidence)
        if frame.output.json:
            frame.output.answer("comparison", data, "")
        else:
            comparison_text.print_comparison(frame.output, data)


def _print_diff(frame: Frame, results: RaceResults, pair: tuple[str, str], *, stat: bool) -> None:
    patch = results.diff(*pair, stat=stat)
    if frame.output.json:
        frame.output.answer("candidate-diff", shapes.candidate_diff(patch), "")
    elif stdout_is_terminal():
        frame.output.answer("candidate-diff", None, painted_patch(patch.text))
    else:
        frame.output.raw("out", patch.text)
    if not patch.is_complete:
        frame.output.note("the difference is too large and was cut")


def _print_page(frame: Frame, results: RaceResults, path: str) -> None:
    from atoll.cli import comparison_html  # noqa: PLC0415 - only for a page

    if frame.output.json:
        raise SpecError("`--html` and `--json` are both given", hint="omit one of them")
    evidence = results.compare()
    found = [one for one in evidence.candidates if one.candidate.tree]
    limit_bytes = max(_LEAST_BYTES, _PAGE_BYTES // max(1, len(found)))
    patches = {one.name: results.patch(one, limit_bytes=limit_bytes) for one in found}
    text = comparison_html.render_page(
        shapes.comparison(evidence),
        {name: shapes.candidate_diff(patch) for name, patch in patches.items()},
    )
    if path == "-":
        frame.output.answer("comparison", None, text)
        return
    results.save_page(text, path)
    frame.output.answer("comparison", None, path)
