"""Runs the command of a stage, watches its health, and undoes it; journalled, and never twice."""

from __future__ import annotations

import time
from collections.abc import Callable

from atoll.engine.promotion import landing_steps, targets
from atoll.engine.promotion.journal import PromotionJournal, StoppedError, fail, wait
from atoll.engine.promotion.stage_commands import CommandEnd, StageCommand, run_command
from atoll.engine.state.session import Session
from atoll.host import git
from atoll.host.process import pause
from atoll.host.recovery import recovery_points
from atoll.host.recovery.recovery_points import Shelf
from atoll.keeper import process_tree
from atoll.model.errors import AtollError, StateError
from atoll.model.names import printable
from atoll.model.promotion import (
    Promotion,
    PromotionState,
    PromotionStep,
    StageSpec,
    StepAct,
    StepFacts,
    StepState,
)
from atoll.model.state import ProjectRecord, RecoveryPoint

_MOST_INTERVAL_S = 10.0
_LEAST_INTERVAL_S = 0.2
_PARTS = 10
"""How often the health is looked at during a short soak."""
_HEALTH_S = 60.0

Say = Callable[[str], None]


def variables(
    project: ProjectRecord, journal: PromotionJournal, step: PromotionStep, branch: str
) -> dict[str, str]:
    facts = step.facts
    return {
        "ATOLL_COMMIT": facts.commit,
        "ATOLL_TREE": facts.tree,
        "ATOLL_BRANCH": branch,
        "ATOLL_CAPSULE": journal.promotion.capsule,
        "ATOLL_STAGE": step.stage,
        "ATOLL_PROJECT_NAME": project.name,
        "ATOLL_PREVIOUS_COMMIT": facts.previous,
    }


def run_stage(  # noqa: PLR0913 - a stage, and what it is about
    session: Session,
    project: ProjectRecord,
    journal: PromotionJournal,
    stage: StageSpec,
    commit: str,
    tree: str,
    *,
    branch: str,
    again: bool,
    say: Say,
) -> None:
    """Raises StoppedError when the command or the health says no, or when it is not known how the
    command ended.
    """
    facts = StepFacts(
        commit=commit, tree=tree, ref=f"refs/heads/{branch}" if branch else "",
        timeout_s=stage.timeout_s,
        previous=targets.find_previous(session, project, journal.promotion, stage.name),
    )  # fmt: skip
    if stage.run is not None:
        own = facts._replace(command=stage.run, undo=stage.undo or "")
        _run(session, project, journal, stage, own, again=again, say=say)
    if stage.health is not None:
        own = facts._replace(command=stage.health)
        _watch_health(session, project, journal, stage, own, say=say)


def _run(  # noqa: PLR0913 - as `run_stage`
    session: Session,
    project: ProjectRecord,
    journal: PromotionJournal,
    stage: StageSpec,
    facts: StepFacts,
    *,
    again: bool,
    say: Say,
) -> None:
    known = journal.find(stage.name, StepAct.RUN)
    name = journal.promotion.capsule
    if known is not None and known.state is StepState.DONE:
        return
    if known is not None and known.state is StepState.STARTED:
        if not again:
            raise wait(
                f"the command of the stage `{stage.name}` was started, and atoll was killed before "
                f"it ended: `{stage.run}`; it is not run again by itself",
                f"see what it did, then: atoll promote {name} --to {stage.name} --again (runs it "
                f"again), or: atoll undo {name}",
            )
        journal.set(known, StepState.FAILED, known.facts._replace(message="its end is unknown"))
    say(f"running {stage.run}")
    step = journal.start(stage.name, StepAct.RUN, facts)
    session.reach("promote.running", name)
    end = _command(session, project, journal, step)
    session.reach("promote.ran", name)
    done = _facts(step.facts, end.code, end.message, end.output, end.log)
    if end.is_good:
        journal.set(step, StepState.DONE, done)
        return
    message = f"the command of the stage `{stage.name}` failed: {end.message}"
    journal.set(step, StepState.FAILED, done._replace(message=message))
    raise fail(message, f"its output: {end.log}")


def _command(
    session: Session, project: ProjectRecord, journal: PromotionJournal, step: PromotionStep
) -> CommandEnd:
    facts = step.facts
    branch = facts.ref.removeprefix("refs/heads/")
    spec = StageCommand(
        facts.command, step.stage, facts.timeout_s, variables(project, journal, step, branch)
    )

    def note(pid: int) -> None:
        found = process_tree.find_process(pid)
        if found is not None and step.act in (StepAct.RUN, StepAct.UNDO_RUN):
            journal.set(step, StepState.STARTED, facts._replace(process=found.identity))

    return run_command(session, project, spec, on_start=note)


def require_none_running(session: Session, project: ProjectRecord) -> None:
    """Raises StateError while a command of a stage runs that was started by an atoll which was
    killed: neither it nor its undo may run beside it.
    """
    for promotion in session.store.promotions(project.id):
        for step in session.store.promotion_steps(promotion.id):
            if step.state is not StepState.STARTED or not step.facts.process:
                continue
            pid = step.facts.process[0]
            found = process_tree.find_process(pid)
            if found is None or found.is_dead or found.identity != step.facts.process:
                continue
            what = "undo command" if step.act is StepAct.UNDO_RUN else "command"
            raise StateError(
                f"the {what} of the stage `{step.stage}` of `{promotion.capsule}` is still running "
                f"as process {pid}, though the atoll that started it was killed: "
                f"`{printable(step.facts.command)}`",
                hint=f"wait for its end, or: kill -- -{pid}",
            )


def _facts(facts: StepFacts, code: int | None, message: str, output: str, log: str) -> StepFacts:
    return facts._replace(exit_code=code, message=message, output=output, log=log)


def _watch_health(
    session: Session,
    project: ProjectRecord,
    journal: PromotionJournal,
    stage: StageSpec,
    facts: StepFacts,
    *,
    say: Say,
) -> None:
    """The time during which no atoll observed it, because it was killed, does not count."""
    known = journal.find(stage.name, StepAct.HEALTH)
    if known is not None and known.state is StepState.DONE:
        return
    if known is not None and known.state is StepState.STARTED:
        step = known
    else:
        limited = facts._replace(timeout_s=min(facts.timeout_s, _HEALTH_S))
        step = journal.start(stage.name, StepAct.HEALTH, limited)
    interval_s = min(_MOST_INTERVAL_S, max(_LEAST_INTERVAL_S, stage.soak_s / _PARTS))
    say(f"watching the health for {stage.soak_s:g} s" if stage.soak_s else "looking at the health")
    while True:
        began = time.monotonic()
        end = _command(session, project, journal, step)
        if not end.is_good:
            held = step.facts.observed_s
            message = f"the health of the stage `{stage.name}` failed"
            message += f" after {held:.0f} of {stage.soak_s:g} s" if stage.soak_s else ""
            message += f": {end.message}"
            done = _facts(step.facts, end.code, message, end.output, end.log)
            journal.set(step, StepState.FAILED, done)
            raise fail(message, f"its output: {end.log}")
        session.reach("promote.healthy", journal.promotion.capsule)
        left_s = stage.soak_s - step.facts.observed_s - (time.monotonic() - began)
        if left_s <= 0:
            break
        pause(min(interval_s, left_s))
        observed_s = step.facts.observed_s + time.monotonic() - began
        step = journal.set(step, StepState.STARTED, step.facts._replace(observed_s=observed_s))
    done = _facts(step.facts, 0, "", end.output, end.log)
    journal.set(step, StepState.DONE, done._replace(observed_s=stage.soak_s))


def find_undoable(journal: PromotionJournal, stage: str) -> PromotionStep | None:
    """The command of a stage that was begun and has not been undone since."""
    run = journal.find(stage, StepAct.RUN)
    if run is None:
        return None
    undone = [
        step for step in journal.steps()
        if step.stage == stage and step.act is StepAct.UNDO_RUN and step.state is StepState.DONE
    ]  # fmt: skip
    return None if any(step.position > run.position for step in undone) else run


def undo_run(
    session: Session,
    project: ProjectRecord,
    journal: PromotionJournal,
    run: PromotionStep,
    *,
    again: bool = False,
    verb: str = "undo",
) -> None:
    """Runs the undo command that was declared when the command ran. Raises StoppedError when it
    fails, or when it did before: it is tried again only when asked.
    """
    name = journal.promotion.capsule
    known = journal.find(run.stage, StepAct.UNDO_RUN)
    if known is not None and known.position > run.position and not again:
        if known.state is StepState.STARTED:
            raise wait(
                f"the undo command of the stage `{run.stage}` was started, and atoll was killed "
                f"before it ended: `{run.facts.undo}`; it is not run again by itself",
                f"see what it did, then: atoll undo {name} --again",
            )
        if known.state is StepState.FAILED:
            raise fail(known.facts.message, f"atoll undo {name} --again", exit_code=5)
    facts = run.facts._replace(
        command=run.facts.undo, exit_code=None, message="", output="", log=""
    )
    step = journal.start(run.stage, StepAct.UNDO_RUN, facts)
    session.reach(f"{verb}.running", name)
    end = _command(session, project, journal, step)
    session.reach(f"{verb}.ran", name)
    done = _facts(facts, end.code, end.message, end.output, end.log)
    if end.is_good:
        journal.set(step, StepState.DONE, done)
        if run.state is StepState.DONE:
            journal.set(run, StepState.UNDONE)
        return
    message = (
        f"the undo command of the stage `{run.stage}` failed: {end.message}; what "
        f"`{run.facts.command}` did is still there"
    )
    journal.set(step, StepState.FAILED, done._replace(message=message))
    raise fail(message, f"its output: {end.log}; then: atoll undo {name} --again", exit_code=5)


def undo_failed(
    session: Session,
    project: ProjectRecord,
    journal: PromotionJournal,
    stage: StageSpec,
    stopped: StoppedError,
    *,
    say: Say,
) -> StoppedError:
    """Undoes what a stage did that has failed: its command, then its landing. Returns the failure,
    with what could not be undone.
    """
    stop = stopped.stop
    if stop.state is not PromotionState.FAILED:
        return stopped
    done = []
    try:
        run = find_undoable(journal, stage.name)
        if run is not None and run.facts.undo:
            say(f"undoing: {run.facts.undo}")
            undo_run(session, project, journal, run)
            done.append("its undo command has run")
        elif run is not None:
            done.append("it has no undo command: what it did stays")
        landed = journal.find(stage.name, StepAct.LAND)
        if landed is not None and landed.state is StepState.DONE:
            undo_landing(session, project, journal, landed)
            done.append("the branch is back where it was")
    except StoppedError as error:
        return _worse(stop.reason, error.stop.reason, error.stop.hint)
    except AtollError as error:
        return _worse(stop.reason, error.message, error.hint or "")
    said = "; ".join([stop.reason, *done])
    return StoppedError(stop._replace(reason=said))


def _worse(reason: str, also: str, hint: str) -> StoppedError:
    return fail(f"{reason}\nUNDO FAILED TOO: {also}", hint, exit_code=5)


def _keep_work(
    session: Session, project: ProjectRecord, promotion: Promotion, facts: StepFacts
) -> list[str]:
    """Stores what has landed as a recovery point, if it is on no other branch any more: its capsule
    may have been removed since. Returns what to tell the owner.
    """
    repository = project.git_dir
    if promotion.spec.commit and not _is_alone(promotion.spec.commit, facts, repository):
        return []
    at = time.strftime("%Y%m%dT%H%M%S", time.gmtime(promotion.created_at))
    name = f"{promotion.capsule}/{at}-promotion-{promotion.id}-{facts.new[:10]}"
    point = RecoveryPoint(
        name, promotion.capsule, recovery_points.PREFIX + name, facts.new, facts.old, facts.new,
        stored_at=time.time(),
    )  # fmt: skip
    recovery_points.describe(Shelf(repository, session.home), point)
    git.set_ref(point.ref, facts.new, cwd=repository)
    kept = f"no other branch has the work of `{promotion.capsule}`: it is in the recovery point "
    return [f"{kept}{name}; atoll recover {name}"]


def _is_alone(commit: str, facts: StepFacts, repository: str) -> bool:
    """Whether no branch but the one that is taken back has a commit."""
    holders = git.git(
        "for-each-ref", f"--contains={commit}", "--format=%(refname)", "refs/heads/",
        "refs/remotes/", "refs/tags/",
        cwd=repository, allowed=(0, 129),
    )  # fmt: skip
    return not set(holders.text.split("\n")) - {"", facts.ref}


def undo_landing(
    session: Session, project: ProjectRecord, journal: PromotionJournal, landed: PromotionStep
) -> list[str]:
    """Brings a branch, or the files that a patch changed, back to where they were. Returns what
    to tell the owner.
    """
    facts = landed.facts
    if facts.old == facts.new:
        journal.set(landed, StepState.UNDONE)
        return []
    notes = _keep_work(session, project, journal.promotion, facts)
    back = facts._replace(old=facts.new, new=facts.old, place="", message="")
    step = journal.start(landed.stage, StepAct.UNDO_LAND, back)
    landing_steps.carry_out(session, project, journal, step)
    return notes
