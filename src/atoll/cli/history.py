"""`atoll history`: what was promoted, when, where to and by which proof."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.cli.frame import Frame, complete_capsules, verb
from atoll.cli.phrases import moment
from atoll.engine import shapes

if TYPE_CHECKING:
    from atoll.engine.promotion.promotions import PromotionReport

_COLUMNS = ("when", "capsule", "state", "passed", "landed", "tree", "agent", "proof", "approved by")


@click.command("history")
@click.argument("name", required=False, shell_complete=complete_capsules)
@verb
def command(frame: Frame, name: str | None) -> None:
    """List the promotions of the project, or of NAME, the newest first."""
    found = frame.project().promotions.history(name)
    frame.output.table(
        "history",
        [shapes.promotion(report) for report in found],
        _COLUMNS,
        [_row(report) for report in found],
        clip=("proof", "approved by", "landed"),
        drop=("agent", "approved by", "tree", "proof"),
    )
    if not found:
        frame.output.note("nothing was promoted yet\nhint: atoll promote NAME")


def _row(report: PromotionReport) -> tuple[str, ...]:
    promotion = report.promotion
    landed = [
        f"{step.facts.ref.removeprefix('refs/heads/')} {step.facts.new[:10]}"
        for step in report.landings
    ]
    tree = report.landings[-1].facts.tree if report.landings else promotion.spec.tree
    proof = dict.fromkeys(f"{one.name} {one.status} on {one.tree[:10]}" for one in report.results)
    return (
        moment(promotion.created_at),
        promotion.capsule,
        str(promotion.state),
        " ".join(report.passed_stages) or "-",
        ", ".join(landed) or "-",
        tree[:10],
        promotion.spec.agent or "-",
        ", ".join(proof) or "-",
        ", ".join(dict.fromkeys(f"{one.stage}: {one.by}" for one in report.approvals)) or "-",
    )
