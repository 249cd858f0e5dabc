"""`atoll undo`: take the last promotion back."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, complete_capsules, verb
from atoll.cli.promote import render_landing
from atoll.engine import shapes
from atoll.model.names import printable
from atoll.model.promotion import PromotionState, StepAct, StepState


@click.command("undo")
@click.argument("name", required=False, shell_complete=complete_capsules)
@click.option(
    "--again", is_flag=True, help="Run an undo command again that failed or whose end is unknown."
)
@verb
def command(frame: Frame, name: str | None, *, again: bool) -> int:
    """Take the last promotion of the project, or of NAME, back.

    The undo commands of its stages run in reverse order, then the branch goes back. If others have
    committed on top, nothing changes, and the hint says what to revert.
    """
    report = frame.project().promotions.undo(name, again=again)
    is_undone = report.promotion.state is PromotionState.UNDONE
    back = [
        step for step in report.steps
        if step.act is StepAct.UNDO_LAND and step.state is StepState.DONE
    ]  # fmt: skip
    lines = [render_landing(step) for step in back]
    lines += [f"the promotion of {report.promotion.capsule} is undone"] if is_undone else []
    frame.output.answer("promotion", shapes.promotion(report), "\n".join(lines))
    for line in report.left:
        frame.output.warn(printable(line))
    spec = report.promotion.spec
    if not is_undone and not frame.output.json:
        frame.output.problem(spec.reason, spec.hint)
    return spec.exit_code
