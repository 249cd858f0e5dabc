"""The journal of one promotion: every act is stored before it happens, and what came of it."""

from __future__ import annotations

import time
from typing import NamedTuple

from atoll.engine.state.session import Session
from atoll.model.errors import AtollError
from atoll.model.promotion import (
    Promotion,
    PromotionState,
    PromotionStep,
    StepAct,
    StepFacts,
    StepState,
)


class StopReason(NamedTuple):
    """Why a promotion goes no further now."""

    state: PromotionState
    reason: str
    hint: str = ""
    exit_code: int = 4
    kept: str = ""
    """The capsule that holds a conflict."""
    stage: str = ""
    """The stage that waits for an approval, and of which tree."""
    tree: str = ""


class StoppedError(Exception):
    """Ends the walk through the stages; `Promotions.promote` reports it."""

    def __init__(self, stop: StopReason) -> None:
        super().__init__(stop.reason)
        self.stop = stop


def wait(
    reason: str, hint: str = "", *, kept: str = "", stage: str = "", tree: str = ""
) -> StoppedError:
    """A person has to do something first: exit code 4."""
    return StoppedError(StopReason(PromotionState.WAITING, reason, hint, 4, kept, stage, tree))


def fail(reason: str, hint: str = "", *, exit_code: int = 1) -> StoppedError:
    return StoppedError(StopReason(PromotionState.FAILED, reason, hint, exit_code))


def stop_of(error: AtollError) -> StopReason:
    """A wrong state waits for a person; a tool that fails has failed."""
    is_state = error.exit_code == 4
    state = PromotionState.WAITING if is_state else PromotionState.FAILED
    return StopReason(state, error.message, error.hint or "", error.exit_code)


class PromotionJournal:
    """Reads and writes the rows of one promotion."""

    def __init__(self, session: Session, promotion: Promotion) -> None:
        self._session = session
        self.promotion = promotion

    def steps(self) -> list[PromotionStep]:
        return self._session.store.promotion_steps(self.promotion.id)

    def find(self, stage: str, act: StepAct) -> PromotionStep | None:
        """The last step of this kind that was not undone."""
        found = [
            step for step in self.steps()
            if (step.stage, step.act) == (stage, act) and step.state is not StepState.UNDONE
        ]  # fmt: skip
        return found[-1] if found else None

    def start(self, stage: str, act: StepAct, facts: StepFacts) -> PromotionStep:
        return self._add(stage, act, StepState.STARTED, facts)

    def record(self, stage: str, act: StepAct, facts: StepFacts) -> PromotionStep:
        """A step that is done at once."""
        return self._add(stage, act, StepState.DONE, facts)

    def _add(self, stage: str, act: StepAct, state: StepState, facts: StepFacts) -> PromotionStep:
        store = self._session.store
        return store.add_promotion_step(self.promotion.id, stage, act, state, facts)

    def set(
        self, step: PromotionStep, state: StepState, facts: StepFacts | None = None
    ) -> PromotionStep:
        changed = step._replace(state=state, facts=step.facts if facts is None else facts)
        self._session.store.set_promotion_step(changed)
        return changed

    def set_state(self, stop: StopReason) -> Promotion:
        """Stores where the promotion is now."""
        spec = self.promotion.spec._replace(
            reason=stop.reason,
            hint=stop.hint,
            exit_code=stop.exit_code,
            waiting_stage=stop.stage,
            waiting_tree=stop.tree,
        )
        is_over = stop.state in (PromotionState.PASSED, PromotionState.UNDONE)
        self.promotion = self.promotion._replace(
            state=stop.state, ended_at=time.time() if is_over else None, spec=spec
        )
        self._session.store.set_promotion(self.promotion)
        return self.promotion
