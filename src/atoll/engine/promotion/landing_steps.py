"""Landings of promotions: journalled, and completed when they were killed."""

from __future__ import annotations

from atoll.engine.promotion import landing as landing_module
from atoll.engine.promotion.checkout_update import Unchanged
from atoll.engine.promotion.journal import PromotionJournal
from atoll.engine.promotion.landing import BranchMovedError, Landing
from atoll.engine.state.session import Session
from atoll.model.errors import AtollError, DriverError, Interrupted, StateError
from atoll.model.promotion import PromotionStep, StepAct, StepFacts, StepState
from atoll.model.state import ProjectRecord


def landing_of(project: ProjectRecord, journal: PromotionJournal, step: PromotionStep) -> Landing:
    """The move that a step of the journal describes."""
    facts, promotion = step.facts, journal.promotion
    is_back = step.act is StepAct.UNDO_LAND
    what = "undo" if is_back else "promote"
    at = facts.new if is_back else facts.old
    return Landing(
        repository=project.git_dir,
        ref=facts.ref,
        old=facts.old,
        new=facts.new,
        message=f"atoll {what} {promotion.capsule} ({facts.way})",
        is_patch=facts.way == "patch",
        index_at=at if facts.way == "patch" else "",
        place=facts.place,
    )


def carry_out(
    session: Session,
    project: ProjectRecord,
    journal: PromotionJournal,
    step: PromotionStep,
    *,
    is_resumed: bool = False,
) -> PromotionStep:
    """Lands what a started step describes.

    Raises BranchMovedError or StateError when it cannot be; a step of which nothing was done has
    failed then. One that may have changed files stays started, and is completed later.
    """
    verb = "undo" if step.act is StepAct.UNDO_LAND else "promote"
    name = journal.promotion.capsule

    def reach(what: str) -> None:
        session.reach(f"{verb}.{what}", name)

    current = [step]

    def note(place: str) -> None:
        facts = current[0].facts._replace(place=place)
        current[0] = journal.set(current[0], StepState.STARTED, facts)
        reach("noted")

    reach("journalled")
    wanted = landing_of(project, journal, step)
    try:
        place = landing_module.land(wanted, is_resumed=is_resumed, note=note, reach=reach)
    except AtollError as error:
        if _is_nothing_done(error, wanted, is_resumed=is_resumed):
            facts = current[0].facts._replace(place="", message=error.message)
            journal.set(current[0], StepState.FAILED, facts)
        raise
    if step.act is StepAct.UNDO_LAND:
        # First: a step that stays started is completed by `settle`.
        _mark_undone(journal, current[0].facts)
    done = journal.set(current[0], StepState.DONE, current[0].facts._replace(place=place))
    reach("recorded")
    return done


def _is_nothing_done(error: AtollError, wanted: Landing, *, is_resumed: bool) -> bool:
    if isinstance(error, Interrupted):
        return False
    if is_resumed and wanted.place:
        # What an earlier try has left is still there, unless there is none.
        is_known = isinstance(error, BranchMovedError)
        return is_known or (isinstance(error, StateError) and landing_module.is_untouched(wanted))
    return isinstance(error, (StateError, Unchanged)) or not isinstance(error, DriverError)


def settle(session: Session, project: ProjectRecord) -> None:
    """Completes every landing of the project that was killed. Raises what prevents that.

    One that has not touched anything, and whose branch has moved since, has failed.
    """
    for promotion in session.store.promotions(project.id):
        journal = PromotionJournal(session, promotion)
        for step in journal.steps():
            is_landing = step.act in (StepAct.LAND, StepAct.UNDO_LAND)
            if not is_landing or step.state is not StepState.STARTED:
                continue
            try:
                carry_out(session, project, journal, step, is_resumed=True)
            except BranchMovedError:
                continue
            except StateError as error:
                if not step.facts.place or landing_module.is_untouched(
                    landing_of(project, journal, step)
                ):
                    continue
                raise _unsettled(promotion.capsule, error) from error


def _unsettled(capsule: str, error: StateError) -> StateError:
    return StateError(
        f"a landing of `{capsule}` was killed in the middle, and cannot go on: {error.message}",
        hint=error.hint,
    )


def _mark_undone(journal: PromotionJournal, facts: StepFacts) -> None:
    """The landing that was taken back is one that does not count any more."""
    for step in journal.steps():
        is_same = (step.facts.ref, step.facts.new) == (facts.ref, facts.old)
        if step.act is StepAct.LAND and step.state is StepState.DONE and is_same:
            journal.set(step, StepState.UNDONE)
