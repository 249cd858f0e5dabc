"""`atoll check`: the project's checks on what a capsule has committed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.harmless import clean
from atoll.cli.output import Output
from atoll.engine import shapes
from atoll.model.check import CheckResult, CheckStatus, Figure
from atoll.model.errors import SpecError
from atoll.model.names import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.cli.live_lines import LiveLines
    from atoll.engine.check.capsule_checks import CheckReport
    from atoll.engine.check.checks import CheckProgress

_SHOWN_LINES = 15
_SHOWN_FIGURES = 6
_HASH = 10
_NOT_FOUND = 127
"""With which a shell ends that does not find a program."""


@click.command("check")
@name_argument
@click.argument("checks", nargs=-1, metavar="[CHECK]...")
@click.option("--again", is_flag=True, help="Run them also if their results are known.")
@click.option(
    "--here", is_flag=True,
    help="Run them in NAME itself, uncommitted changes included. The results are not stored.",
)  # fmt: skip
@click.option("--junit", metavar="FILE", help="Write the results to FILE as JUnit XML.")
@click.option(
    "--jobs", type=click.IntRange(1, 256), metavar="N",
    help="Run at most N checks at once; default: the number of CPUs.",
)  # fmt: skip
@verb
def command(
    frame: Frame,
    name: str,
    checks: tuple[str, ...],
    junit: str | None,
    jobs: int | None,
    *,
    again: bool,
    here: bool,
) -> int:
    """Run the checks of the project on the commits of NAME, each in a fresh capsule.

    Without CHECK, all of them: those in atoll.toml, else those that are detected. The results are
    stored by tree: what is known is not run again. Exits with 0 if all have passed, else 1.
    """
    if here and (again or jobs):
        raise SpecError("`--here` always runs the checks again, one by one", hint="omit the others")
    if junit is not None:
        _require_place(junit)
    capsule = frame.capsule(name)
    with frame.output.live() as lines:
        report = capsule.check(checks, again=again, here=here, jobs=jobs, on_progress=follow(lines))
    show_report(frame.output, report)
    if report.has_uncommitted:
        frame.output.note(
            f"`{name}` has uncommitted changes, which were not checked\n"
            f'hint: atoll commit {name} -m "…", or: atoll check {name} --here'
        )
    if junit is not None:
        # Last, so that a file that cannot be written costs no results.
        _write(junit, report.render_junit())
    return 0 if report.passed else 1


def follow(lines: LiveLines) -> Callable[[CheckProgress], None]:
    """Shows the progress of checks."""

    def show(progress: CheckProgress) -> None:
        result = progress.result
        if result is None:
            is_active = progress.phase == "running"
            if is_active or lines.is_animated:
                lines.show(progress.name, progress.phase, is_active=is_active)
        elif result.is_known:
            lines.show(progress.name, f"{result.status} (known)")
        else:
            lines.show(progress.name, f"{result.status} in {result.took_s:.1f} s")

    return show


def show_report(output: Output, report: CheckReport) -> None:
    """Prints a report as the answer."""
    rows = [_row(result) for result in report.results]
    columns = ("check", "status", "took", "tests", "figures", "tree")
    data = shapes.check_report(report)
    output.table("checks", data, columns, rows, clip=("figures",), drop=("figures", "tests"))
    if not output.json:
        describe(output, report)


def describe(output: Output, report: CheckReport) -> None:
    """Prints what there is to say about a report besides the table."""
    for result in report.results:
        _explain(output, result)
    if report.is_detected:
        names = ", ".join(f"{one.name} (`{printable(one.command)}`)" for one in report.results)
        output.note(f"detected, since atoll.toml declares no checks: {names}")
        if any(one.exit_code == _NOT_FOUND for one in report.results):
            output.note("hint: atoll init writes them to atoll.toml, where you can change them")
    if report.is_here:
        output.note(f"this was a look in `{report.capsule}` itself, and is no proof")
    elif known := [one.name for one in report.results if one.is_known]:
        output.note(
            f"known for this tree: {', '.join(known)}\n"
            f"hint: atoll check {report.capsule} --again runs them again"
        )


def _row(result: CheckResult) -> tuple[str, ...]:
    tests = result.tests
    counts = "-"
    if tests is not None:
        parts = {"passed": tests.passed, "failed": tests.failed, "skipped": tests.skipped}
        counts = ", ".join(f"{count} {what}" for what, count in parts.items() if count) or "none"
    return (
        result.name,
        str(result.status),
        f"{result.took_s:.1f} s" + (" (known)" if result.is_known else ""),
        counts,
        ", ".join(map(render_figure, result.figures[:_SHOWN_FIGURES])) or "-",
        result.tree[:_HASH] or "-",
    )


def render_figure(figure: Figure) -> str:
    return f"{figure.name} {figure.value:g}" + (f" {figure.unit}" if figure.unit else "")


def _explain(output: Output, result: CheckResult) -> None:
    """Why a check has not passed, with the end of its output."""
    if result.message:
        output.note(f"{result.name}: {result.status}: {printable(result.message)}")
    if result.passed:
        return
    lines = clean(result.output.encode(errors="replace")).rstrip().split("\n")
    if shown := [line for line in lines[-_SHOWN_LINES:] if line.strip()]:
        output.note("\n".join(f"  {printable(line.rstrip())}" for line in shown))
    if result.log:
        output.note(f"  more: {result.log}")
    if result.status is CheckStatus.FLAKY:
        output.note(f"  it was run {result.attempts} times: a pass after a failure is no pass")


def _require_place(path: str) -> None:
    """Raises SpecError where no file can be written, before checks take minutes."""
    place = Path(path)
    if not path or place.is_dir():
        raise SpecError(f"`--junit {printable(path)}` names no file", hint="--junit report.xml")
    if not place.parent.is_dir():
        raise SpecError(f"there is no directory `{printable(str(place.parent))}`")


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot write `{printable(path)}`: {error.strerror}") from error
