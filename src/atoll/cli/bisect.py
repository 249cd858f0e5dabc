"""`atoll bisect`: the snapshot after which a check began to fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.cli import phrases
from atoll.cli.frame import Frame, name_argument, verb
from atoll.engine import shapes
from atoll.model.names import printable

if TYPE_CHECKING:
    from atoll.engine.check.bisection import BisectReport, Tried
    from atoll.model.state import Snapshot

_SHOWN_RUNS = 10


@click.command("bisect")
@name_argument
@click.option("--check", metavar="CHECK", help="The check; needed if there are several.")
@click.option("--good", metavar="SNAP", help="A snapshot where it passes; default: the oldest.")
@click.option("--bad", metavar="SNAP", help="A snapshot where it fails; default: the present.")
@click.option(
    "--jobs", type=click.IntRange(1, 64), metavar="N",
    help="Try at most N snapshots at once; default: the number of CPUs.",
)  # fmt: skip
@verb
def command(
    frame: Frame,
    name: str,
    check: str | None,
    good: str | None,
    bad: str | None,
    jobs: int | None,
) -> int:
    """Find the snapshot of NAME after which a check began to fail, and the runs before it.

    Snapshots are tried in forks that are thrown away, as they are, uncommitted changes included.
    What a rollback left behind is not searched. Exits with 0 if the change is found, else with 1.
    """
    capsule = frame.capsule(name)
    with frame.output.live() as lines:

        def show(tried: Tried) -> None:
            said = f": {tried.message}" if tried.message else ""
            lines.show(f"snapshot {tried.point.snapshot.number}", f"{tried.verdict}{said}")

        report = capsule.bisect(check, good=good, bad=bad, jobs=jobs, on_tried=show)
    _show(frame, name, report)
    return 0 if report.bad is not None else 1


def _show(frame: Frame, name: str, report: BisectReport) -> None:
    rows = [
        (str(one.point.snapshot.number), str(one.verdict), one.point.snapshot.message, one.message)
        for one in report.tried
    ]
    frame.output.table(
        "bisect", shapes.bisection(name, report), ("snapshot", report.check, "state", "why"), rows,
        clip=("why", "state"),
    )  # fmt: skip
    if frame.output.json:
        return
    note = frame.output.note
    if report.good is None or report.bad is None:
        note(_explain(name, report))
        return
    note(f"`{report.check}` passes at {_point(report.good)} and fails at {_point(report.bad)}")
    if report.between:
        numbers = ", ".join(str(one.number) for one in report.between)
        note(f"it is undecidable in between, at: {numbers}")
    for run in report.runs[:_SHOWN_RUNS]:
        note(f"  {run.label}  {phrases.moment(run.created_at)}  {phrases.command(run.argv)}")
    if len(report.runs) > _SHOWN_RUNS:
        note(f"  and {len(report.runs) - _SHOWN_RUNS} more runs")
    if not report.runs:
        note("no run was active in between: the files were changed from outside, or by an editor")
    note(f"hint: atoll diff {name} {report.good.number}")


def _point(snapshot: Snapshot) -> str:
    said = f" ({printable(snapshot.message)})" if snapshot.message else ""
    return f"snapshot {snapshot.number}{said}"


def _explain(name: str, report: BisectReport) -> str:
    match str(report.state):
        case "never-bad":
            return f"`{report.check}` does not fail at the newest point: there is nothing to find"
        case "always-bad":
            return (
                f"`{report.check}` fails at the oldest point already, so the change is before it\n"
                f"hint: atoll snapshots {name}"
            )
    return (
        f"it is undecidable at an end of the time line whether `{report.check}` passes\n"
        f"hint: atoll bisect {name} --good SNAP --bad SNAP"
    )
