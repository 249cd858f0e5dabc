"""`atoll verify`: attacks a capsule's walls from inside."""

from __future__ import annotations

import click

from atoll.cli import shapes
from atoll.cli.frame import Frame, name_argument, verb
from atoll.engine.verify import attack
from atoll.engine.verify.attempt import Finding, Report
from atoll.model import units
from atoll.model.names import printable


@click.command("verify")
@name_argument
@click.option("--all", "everything", is_flag=True, help="Show each attempt, also those that held.")
@verb
def command(frame: Frame, name: str, *, everything: bool) -> int:
    """Makes real attempts to get out of a capsule, and shows which walls held.

    Secrets are planted on this machine and in a second capsule, and removed afterwards. What could
    not be tried is not counted. Exits 1 when an attempt got through.
    """
    capsule = frame.capsule(name)
    report = attack.verify(
        frame.project(), capsule, tell=lambda step: frame.output.doing(step, name)
    )
    data = shapes.verification(report)
    columns = ("wall", "attempts", "held", "gave way", "not tried")
    frame.output.table(
        "verification", data, columns, (_row(report, wall.name) for wall in attack.WALLS)
    )
    shown = [f for f in report.findings if everything or f.verdict != "held"]
    if shown and not frame.output.json:
        frame.output.answer("verification", data, "\n".join(["", *map(_line, shown)]))
    frame.output.note(_summary(report))
    return 1 if report.breaches else 0


def _row(report: Report, wall: str) -> tuple[str, ...]:
    held, through, missing = (
        len(report.of(wall, verdict)) for verdict in ("held", "gave way", "not tried")
    )
    return wall, str(held + through), str(held), str(through), str(missing)


def _line(finding: Finding) -> str:
    detail = f": {printable(finding.detail)}" if finding.detail else ""
    return f"{finding.verdict:<9}  {finding.id:<4}  {finding.title}{detail}"


def _summary(report: Report) -> str:
    tried = [finding for finding in report.findings if finding.verdict != "not tried"]
    count = len(report.breaches)
    outcome = f"{count} of them got through" if count else "all of them held"
    text = (
        f"{units.counted(len(tried), 'attempt')} on `{report.capsule}` (level `{report.level}`) "
        f"in {report.took_s:.1f} s: {outcome}"
    )
    return f"{text}\nhint: atoll levels" if count else text
