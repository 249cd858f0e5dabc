"""`atoll promote`: bring a capsule's commits to the owner's branch and beyond, stage by stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.cli import prompts
from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.harmless import clean
from atoll.cli.phrases import moment
from atoll.engine import shapes
from atoll.model.errors import SpecError
from atoll.model.names import printable
from atoll.model.promotion import PromotionState, PromotionStep, StepAct, StepState

if TYPE_CHECKING:
    from atoll.engine.promotion.acceptance import AcceptanceRequest, Ask
    from atoll.engine.promotion.promotions import PromotionReport
    from atoll.engine.promotion.stage_walk import PromotionProgress

_OUTPUT_LINES = 20


@click.command("promote")
@name_argument
@click.option("--to", metavar="STAGE", help="Stage to reach; default: the one that lands the work.")
@click.option("-m", "--message", help="Message of the commit that lands.")
@click.option(
    "--accept", "accepted", multiple=True, metavar="risky|KIND",
    help="Accept files that can run code on your machine: all, or one kind.",
)  # fmt: skip
@click.option(
    "--check", "checks", multiple=True, metavar="NAME|CMD",
    help="A check or shell command that must pass besides those of the project.",
)  # fmt: skip
@click.option(
    "--again", is_flag=True,
    help="Run failed checks again, and a command that failed or whose end is unknown.",
)  # fmt: skip
@click.option("--status", "only_status", is_flag=True, help="Show the last promotion of NAME.")
@verb
def command(
    frame: Frame,
    name: str,
    to: str | None,
    message: str | None,
    accepted: tuple[str, ...],
    checks: tuple[str, ...],
    *,
    again: bool,
    only_status: bool,
) -> int:
    """Bring what NAME has committed to your branch, and on to further stages.

    The stages are those in atoll.toml; by default the work is verified in fresh capsules and then
    lands on the branch that NAME started from. What was verified is what lands. Your uncommitted
    work is never touched. After a crash the same command goes on where it was.

    Exit codes: 0 all stages passed; 1 a check, command or health check says no; 4 you have to do
    something first, such as approve; 5 a tool failed.
    """
    project = frame.project()
    if only_status:
        if to or message or accepted or checks or again:
            raise SpecError("`--status` takes no other option", hint=f"atoll promote {name}")
        report = project.promotions.status(name)
        frame.output.answer("promotion", shapes.promotion(report), render_status(report))
        return 0
    report = project.promotions.promote(
        frame.capsule(name).record,
        to,
        accept=accepted,
        ask=_asker(frame),
        message=message,
        checks=project.promotions.choose_checks(checks),
        again=again,
        on_progress=lambda progress: _show_progress(frame, progress),
    )
    show(frame, report)
    return report.exit_code


def _asker(frame: Frame) -> Ask | None:
    confirm = prompts.find_confirmer()
    if confirm is None or frame.output.json:
        return None

    def ask(request: AcceptanceRequest) -> bool:
        frame.output.doing("", "")
        frame.output.ask_about(
            "these files can run code on your machine, or widen its trust:\n"
            + "\n".join(
                f"  {printable(one.change.shown)}: {printable(one.why)} ({one.kind})"
                for one in request.files
            ),
            clean(request.diff),
        )
        return confirm(f"Let them reach `{request.stage}`?")

    return ask


def _show_progress(frame: Frame, progress: PromotionProgress) -> None:
    if progress.check is None:
        frame.output.doing("", "")
        frame.output.note(f"{progress.stage}: {printable(progress.text)}")
    else:
        frame.output.doing(progress.text, progress.stage)


def show(frame: Frame, report: PromotionReport) -> None:
    """The outcome of a promotion, as the verbs print it."""
    frame.output.answer("promotion", shapes.promotion(report), _render_outcome(report))
    if frame.output.json:
        return
    spec = report.promotion.spec
    if report.promotion.state in (PromotionState.PASSED, PromotionState.UNDONE):
        return
    if report.promotion.state is PromotionState.FAILED:
        _show_output(frame, report)
    frame.output.problem(spec.reason, spec.hint)


def _show_output(frame: Frame, report: PromotionReport) -> None:
    """The end of what a failed command printed."""
    failed = [s for s in report.steps if s.state is StepState.FAILED and s.facts.output]
    checks = [one for one in report.results if not one.passed]
    text = failed[-1].facts.output if failed and failed[-1].act is not StepAct.LAND else ""
    if not text and checks:
        text = checks[-1].output
    lines = clean(text.encode(errors="replace")).strip().splitlines()[-_OUTPUT_LINES:]
    if lines:
        frame.output.note("\n".join(f"  {line}" for line in lines))


def _render_outcome(report: PromotionReport) -> str:
    promotion = report.promotion
    landed = report.landings
    lines = []
    if promotion.state is PromotionState.PASSED:
        lines = [render_landing(step) for step in landed]
        lines.append(f"{promotion.capsule} passed {', '.join(report.passed_stages)}")
    return "\n".join(lines)


def render_landing(step: PromotionStep) -> str:
    facts = step.facts
    branch = printable(facts.ref.removeprefix("refs/heads/"))
    if facts.old == facts.new:
        return f"{branch} has this work already, at {facts.new[:10]}"
    where = f", in {printable(facts.place)}" if facts.place else ""
    if facts.way == "patch":
        files = f"the files of {facts.tree[:10]}"
        if step.act is StepAct.UNDO_LAND:
            return f"{files} are taken out of {printable(facts.place)}"
        return f"{files} are in {printable(facts.place)}, uncommitted"
    return f"{branch} {facts.old[:10]}..{facts.new[:10]} ({facts.way}){where}"


def render_status(report: PromotionReport) -> str:
    """Every stage and step of a promotion."""
    promotion = report.promotion
    spec = promotion.spec
    what = f"commit {spec.commit[:10]}, tree {spec.tree[:10]}, since {moment(promotion.created_at)}"
    lines = [f"{promotion.capsule}: {promotion.state}, to {spec.to}, {what}"]
    names = [*report.stages, *(s.stage for s in report.steps if s.stage not in report.stages)]
    for stage in dict.fromkeys(names):
        lines.append(f"{stage}: {'passed' if stage in report.passed_stages else 'not passed'}")
        lines += [f"  {_render_step(s)}" for s in report.steps if s.stage == stage]
        lines += [
            f"  approved by {one.by}, tree {one.tree[:10]}, {moment(one.at)}"
            for one in report.approvals if one.stage == stage
        ]  # fmt: skip
    if spec.reason:
        lines += [*spec.reason.split("\n"), *([f"hint: {spec.hint}"] if spec.hint else [])]
    return "\n".join(map(printable, lines))


def _render_step(step: PromotionStep) -> str:
    facts = step.facts
    match step.act:
        case StepAct.CHECK:
            what = f"tree {facts.tree[:10]}"
        case StepAct.ACCEPT:
            what = f"{', '.join(facts.kinds)} by {facts.by}"
        case StepAct.LAND | StepAct.UNDO_LAND if facts.ref:
            what = render_landing(step)
        case StepAct.RUN | StepAct.UNDO_RUN | StepAct.HEALTH:
            what = facts.command
        case _:
            what = ""
    reason = f": {facts.message}" if facts.message else ""
    return f"{step.act} {step.state} {moment(step.at)}{f' {what}' if what else ''}{reason}"
