"""`atoll demo`: a race on a sample project, from nothing, in one command."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from atoll.cli import comparison_text
from atoll.cli.frame import Frame, verb
from atoll.cli.output import Output
from atoll.cli.promote import render_landing
from atoll.cli.tables import render_columns
from atoll.engine import shapes
from atoll.engine.home import Home
from atoll.model.names import printable

if TYPE_CHECKING:
    from atoll.engine.demo import Demo, Promise
    from atoll.engine.race.report import RaceStatus
    from atoll.model.shapes import ComparisonShape

_COLUMNS = ("candidate", "checks", "base tests", "cross", "receipt_calls", "lines", "tree")


@click.command("demo")
@click.option("--keep", metavar="DIR", help="Use and keep DIR, which must not exist.")
@verb
def command(frame: Frame, keep: str | None) -> int:
    """Race three attempts at one task on a sample project: one is correct and fast, one is correct
    and slow, one weakens the tests. Compare them, pick the winner by a rule, promote it, and undo
    the promotion.

    Exit code 1: something was not observed as promised.
    """
    if keep is not None:
        place = Path(keep).absolute()
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            raise click.UsageError(f"`{printable(keep)}` already exists") from None
        return _show(frame.output, place, keep=True)
    with tempfile.TemporaryDirectory(prefix="atoll-demo-") as temporary:
        return _show(frame.output, Path(temporary), keep=False)


def _show(output: Output, place: Path, *, keep: bool) -> int:
    demo = Home.demo(place)
    try:
        _run(output, demo)
    finally:
        demo.close(keep=keep)
    if keep:
        output.note(f"look around: cd {demo.root} && ATOLL_HOME={demo.home} atoll compare mend")
    return 0 if demo.is_as_promised else 1


def _run(output: Output, demo: Demo) -> None:
    told = _Narrator(output, demo)
    output.note(f"1. a sample project, whose tests miss two bugs: {demo.root}")
    output.note(f"2. three scripts play the agents\n   $ {demo.command}")
    demo.race(told.progress)
    output.doing("", "")
    told.promises()
    output.note("3. their trees in fresh capsules, and the tests of each on the code of the others")
    evidence = demo.compare()
    data = shapes.comparison(evidence)
    output.note(_indented(render_comparison(data)))
    told.promises()
    output.note("4. the winner by rule")
    choice = demo.pick().choice
    if choice.winner is not None:
        output.note(f"   `{choice.winner}`: {printable(choice.reason)}")
    for name, why in choice.rejected.items():
        output.note(f"   not `{name}`: {printable(why)}")
    told.promises()
    if choice.winner is not None:
        _promote(output, demo, choice.winner, told)
    output.note(f"all of it took {demo.took_s:.1f} s")
    kept = "as promised" if demo.is_as_promised else "not as promised"
    output.answer("demo", shapes.demo(demo, data), kept)


def _promote(output: Output, demo: Demo, winner: str, told: _Narrator) -> None:
    output.note(f"5. atoll promote {winner}")
    promoted = demo.promote(winner)
    for step in promoted.landings:
        output.note(f"   {render_landing(step)}")
    if not promoted.has_passed:
        output.note(f"   {printable(promoted.promotion.spec.reason)}")
    told.promises()
    if promoted.landings:
        output.note("6. atoll undo")
        demo.undo()
        told.promises()


class _Narrator:
    """Prints each promise once it was observed, or not."""

    def __init__(self, output: Output, demo: Demo) -> None:
        self._output, self._demo = output, demo
        self._told = 0

    def promises(self) -> None:
        for promise in self._demo.promises[self._told :]:
            self._output.note(_render_promise(promise))
        self._told = len(self._demo.promises)

    def progress(self, status: RaceStatus) -> None:
        ended = sum(1 for one in status.candidates if one.candidate.has_ended)
        self._output.doing(f"{ended} of {len(status.candidates)} attempts have ended", "race")


def _render_promise(promise: Promise) -> str:
    return f"   {'yes' if promise.is_kept else 'NO'}: {promise.text}"


def render_comparison(data: ComparisonShape) -> str:
    """The columns of a comparison that matter here, and its matrix."""
    columns, rows = comparison_text.candidate_table(data)
    at = [columns.index(name) for name in _COLUMNS if name in columns]
    table = render_columns([columns[i] for i in at], [[row[i] for i in at] for row in rows])
    matrix_columns, matrix_rows = comparison_text.matrix_table(data)
    return f"{table}\n\n{render_columns(matrix_columns, matrix_rows)}"


def _indented(text: str) -> str:
    return "\n".join(f"   {line}".rstrip() for line in text.splitlines())
