"""Takes a promotion back: the undo commands of its stages in reverse order, then the branch."""

from __future__ import annotations

from atoll.engine.promotion import stage_runs
from atoll.engine.promotion.journal import PromotionJournal, StoppedError
from atoll.engine.state.session import Session
from atoll.host import git
from atoll.model.errors import StateError
from atoll.model.names import printable
from atoll.model.promotion import PromotionStep, StepAct, StepState
from atoll.model.state import ProjectRecord


def find_effect(journal: PromotionJournal) -> list[PromotionStep]:
    """The steps of which there is something to take back, or that are being taken back."""
    back = [
        step
        for step in journal.steps()
        if step.act is StepAct.UNDO_LAND and step.state is StepState.STARTED
    ]
    return [*find_landings(journal), *find_runs(journal), *back]


def find_landings(journal: PromotionJournal) -> list[PromotionStep]:
    """The newest first."""
    return [
        step for step in reversed(journal.steps())
        if step.act is StepAct.LAND and step.state is StepState.DONE
    ]  # fmt: skip


def find_runs(journal: PromotionJournal) -> list[PromotionStep]:
    """Commands that were begun and not undone, the newest first."""
    stages = dict.fromkeys(
        step.stage for step in reversed(journal.steps()) if step.act is StepAct.RUN
    )
    found = [stage_runs.find_undoable(journal, stage) for stage in stages]
    return [step for step in found if step is not None]


def require_possible(project: ProjectRecord, journal: PromotionJournal) -> None:
    """Raises StateError when a branch has gone on since."""
    for step in find_landings(journal):
        _require_last(project, step)


def undo(
    session: Session,
    project: ProjectRecord,
    journal: PromotionJournal,
    *,
    again: bool,
    keeps_landings: bool = False,
) -> list[str]:
    """Returns what is left to do by hand.

    Raises StoppedError when an undo command fails, StateError when the branch cannot go back.
    """
    landed = find_landings(journal)
    left = []
    for run in find_runs(journal):
        if not run.facts.undo:
            left.append(
                f"the stage `{run.stage}` has no undo command: what `{run.facts.command}` did stays"
            )
            if run.state is StepState.DONE:
                journal.set(run, StepState.UNDONE)
            continue
        try:
            stage_runs.undo_run(session, project, journal, run, again=again)
        except StoppedError as stopped:
            kept = [f"`{printable(step.facts.ref)}` stays where it is" for step in landed]
            reason = "; ".join([stopped.stop.reason, *kept])
            raise StoppedError(stopped.stop._replace(reason=reason)) from stopped
    for step in landed if not keeps_landings else ():
        left += stage_runs.undo_landing(session, project, journal, step)
    for step in journal.steps():
        if step.act in (StepAct.PASS, StepAct.HEALTH) and step.state is StepState.DONE:
            journal.set(step, StepState.UNDONE)
    session.reach("undo.undone", journal.promotion.capsule)
    return left


def _require_last(project: ProjectRecord, step: PromotionStep) -> None:
    """Raises StateError when the branch is not where the landing has left it."""
    facts = step.facts
    if facts.old == facts.new:
        # The branch had the work already.
        return
    expected = facts.old if facts.way == "patch" else facts.new
    found = git.find_ref(facts.ref, cwd=project.git_dir)
    if found == expected:
        return
    branch = printable(facts.ref.removeprefix("refs/heads/"))
    if facts.way == "patch" or found is None:
        raise StateError(
            f"the branch `{branch}` has changed since the promotion, which is not taken back",
            hint="git restore the files by hand",
        )
    if not git.is_ancestor(facts.new, found, cwd=project.git_dir):
        raise StateError(
            f"the branch `{branch}` does not contain {facts.new[:10]} any more: there is nothing "
            "to take back there",
            hint=f"git log {branch}",
        )
    revert = {
        "merge": f"git revert -m 1 {facts.new}",
        "squash": f"git revert {facts.new}",
    }.get(facts.way, f"git revert {facts.old}..{facts.new}")
    raise StateError(
        f"the branch `{branch}` has commits on top of {facts.new[:10]}, so it cannot go back",
        hint=f"on {branch}: {revert}",
    )
