"""`atoll verify`: attack a capsule's isolation from inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.engine import shapes
from atoll.engine.home import Home
from atoll.model import units
from atoll.model.names import printable

if TYPE_CHECKING:
    from atoll.engine.verify.wall_test import WallFinding, WallReport


@click.command("verify")
@name_argument
@click.option("--all", "everything", is_flag=True, help="Show every attack, not only failures.")
@verb
def command(frame: Frame, name: str, *, everything: bool) -> int:
    """Try to escape from the capsule NAME, and report which attacks were blocked.

    Test secrets are placed on this machine and in a second capsule, and removed afterwards.
    Attacks that cannot be tried are not counted. Exit with 1 if an attack succeeds.
    """
    capsule = frame.capsule(name)
    report = Home.verify(
        frame.project(), capsule, on_progress=lambda step: frame.output.doing(step, name)
    )
    data = shapes.verification(report)
    columns = ("wall", "attempts", "held", "gave way", "not tried")
    frame.output.table("verification", data, columns, (_row(report, wall) for wall in report.walls))
    shown = [f for f in report.findings if everything or f.verdict != "held"]
    if shown and not frame.output.json:
        frame.output.answer("verification", data, "\n".join(["", *map(_line, shown)]))
    frame.output.note(_summary(report))
    return 1 if report.breaches else 0


def _row(report: WallReport, wall: str) -> tuple[str, ...]:
    held, through, missing = (
        len(report.of(wall, verdict)) for verdict in ("held", "gave way", "not tried")
    )
    return wall, str(held + through), str(held), str(through), str(missing)


def _line(finding: WallFinding) -> str:
    detail = f": {printable(finding.detail)}" if finding.detail else ""
    return f"{finding.verdict:<9}  {finding.id:<4}  {finding.title}{detail}"


def _summary(report: WallReport) -> str:
    tried = [finding for finding in report.findings if finding.verdict != "not tried"]
    count = len(report.breaches)
    outcome = f"{count} succeeded" if count else "all were blocked"
    text = (
        f"{units.counted(len(tried), 'attempt')} on `{report.capsule}` (level `{report.level}`) "
        f"in {report.took_s:.1f} s: {outcome}"
    )
    return f"{text}\nhint: atoll levels" if count else text
