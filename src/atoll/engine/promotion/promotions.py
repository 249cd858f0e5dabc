"""The promotions of one project: what `Project.promotions` returns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from atoll.engine.agent.prompts import subject_of
from atoll.engine.capsule import exports, removal
from atoll.engine.check import selection
from atoll.engine.promotion import acceptance, landing_steps, prepared_work, stage_runs, stages
from atoll.engine.promotion import undo as undoing
from atoll.engine.promotion.acceptance import Ask
from atoll.engine.promotion.journal import PromotionJournal, StoppedError, StopReason, stop_of
from atoll.engine.promotion.owner_identity import describe_owner
from atoll.engine.promotion.stage_walk import OnProgress, StageWalk, WalkOptions
from atoll.engine.state.leases import isolation_plan
from atoll.engine.state.session import Session
from atoll.model.check import CheckResult, CheckSpec
from atoll.model.errors import AtollError, Interrupted, StateError
from atoll.model.names import printable
from atoll.model.promotion import (
    Approval,
    Promotion,
    PromotionSpec,
    PromotionState,
    PromotionStep,
    StageSpec,
    StepAct,
    StepState,
)
from atoll.model.state import CapsuleRecord, ProjectRecord

_MOST_NAMES = 5


class PromotionReport(NamedTuple):
    """A promotion as its journal has it."""

    promotion: Promotion
    stages: tuple[str, ...]
    """Those that it walks, in their order; of an old one those that it has begun."""
    steps: tuple[PromotionStep, ...]
    results: tuple[CheckResult, ...]
    """The check results that its steps name, in the order in which they were used."""
    approvals: tuple[Approval, ...]
    left: tuple[str, ...] = ()
    """What an undo could not take back."""

    @property
    def has_passed(self) -> bool:
        return self.promotion.state is PromotionState.PASSED

    @property
    def exit_code(self) -> int:
        return self.promotion.spec.exit_code

    @property
    def passed_stages(self) -> tuple[str, ...]:
        return tuple(
            step.stage for step in self.steps
            if step.act is StepAct.PASS and step.state is StepState.DONE
        )  # fmt: skip

    @property
    def landings(self) -> tuple[PromotionStep, ...]:
        """That have landed, also those that were taken back."""
        done = (StepState.DONE, StepState.UNDONE)
        return tuple(s for s in self.steps if s.act is StepAct.LAND and s.state in done)


class Promotions:
    """A handle. One promotion of a project is at work at a time."""

    def __init__(self, session: Session, project: ProjectRecord) -> None:
        self._session = session
        self._project = project

    def promote(  # noqa: PLR0913 - the options of `atoll promote`
        self,
        capsule: CapsuleRecord,
        to: str | None = None,
        *,
        accept: Collection[str] = (),
        ask: Ask | None = None,
        message: str | None = None,
        checks: Sequence[CheckSpec] = (),
        again: bool = False,
        on_progress: OnProgress | None = None,
    ) -> PromotionReport:
        """Brings the commits of a capsule to a stage, or as far as they come; `exit_code` of the
        report says how it ended. Without `ask` no question is asked. `checks` have to pass besides
        those of the project.

        Raises StateError or SpecError when there is nothing that could be promoted.
        """
        accepted = acceptance.parse_accepted(tuple(accept))
        walked = stages.load_stages(self._session, self._project, to)
        with self._alone():
            stage_runs.require_none_running(self._session, self._project)
            landing_steps.settle(self._session, self._project)
            journal = self._open(capsule, walked, message, tuple(checks))
            options = WalkOptions(accepted, ask, again, on_progress)
            walk = StageWalk(self._session, self._project, journal, walked, options)
            self._session.reach("promote.stored", capsule.name)
            try:
                walk.walk()
                stop = StopReason(PromotionState.PASSED, "", "", 0)
            except StoppedError as stopped:
                stop = stopped.stop
            except Interrupted:
                raise
            except AtollError as error:
                stop = stop_of(error)
            return self._report(journal.set_state(stop), walked)

    def choose_checks(self, words: Sequence[str]) -> list[CheckSpec]:
        """The checks that these words name, each a name or a shell command. Raises SpecError."""
        return selection.choose_checks(self._session, self._project, words)

    def undo(self, name: str | None = None, *, again: bool = False) -> PromotionReport:
        """Takes the last promotion of the project, or of one capsule, back.

        Raises StateError when there is none, or when its branch has gone on; then nothing changes.
        """
        with self._alone():
            stage_runs.require_none_running(self._session, self._project)
            landing_steps.settle(self._session, self._project)
            journal = PromotionJournal(self._session, self._require_last(name))
            left: list[str] = []
            before = journal.promotion
            gone_on = self._find_obstacle(journal)
            effect = undoing.find_effect(journal)
            journal.set_state(StopReason(PromotionState.UNDOING, "it is being taken back", "", 4))
            try:
                left = undoing.undo(
                    self._session, self._project, journal,
                    again=again, keeps_landings=gone_on is not None,
                )  # fmt: skip
                stop = StopReason(PromotionState.UNDONE, "", "", 0)
                if gone_on is not None:
                    # What has landed stays landed.
                    stop = stop_of(gone_on)._replace(state=PromotionState.FAILED)
            except StoppedError as stopped:
                stop = stopped.stop._replace(state=PromotionState.UNDOING)
            except Interrupted:
                raise
            except AtollError as error:
                is_same = undoing.find_effect(journal) == effect
                if is_same and before.state is not PromotionState.UNDOING:
                    # Nothing was taken back, so that the owner can change their mind.
                    self._session.store.set_promotion(before)
                    raise
                stop = stop_of(error)._replace(state=PromotionState.UNDOING)
            return self._report(journal.set_state(stop))._replace(left=tuple(left))

    def _find_obstacle(self, journal: PromotionJournal) -> StateError | None:
        """Why the landings of an undo that was begun stay: their branch has gone on since. Raises
        it for an undo that was not begun.
        """
        try:
            undoing.require_possible(self._project, journal)
        except StateError as error:
            if journal.promotion.state is not PromotionState.UNDOING:
                raise
            return error
        return None

    def approve(self, name: str, stage: str) -> Approval:
        """Approves the tree that waits at a stage. Raises StateError when none does."""
        found = self._session.store.promotions(self._project.id, name)
        if not found:
            raise _nothing(name)
        spec = found[0].spec
        if found[0].state is not PromotionState.WAITING or spec.waiting_stage != stage:
            at = f"it waits at `{spec.waiting_stage}`" if spec.waiting_stage else ""
            what = at or f"it is {found[0].state}"
            raise StateError(
                f"the promotion of `{name}` does not wait for an approval of the stage "
                f"`{printable(stage)}`: {what}",
                hint=f"atoll promote {name} --status",
            )
        person = describe_owner(self._project)
        store = self._session.store
        for given in store.approvals(self._project.id, name):
            if (given.stage, given.tree) == (stage, spec.waiting_tree):
                return given
        return store.add_approval(self._project.id, name, stage, spec.waiting_tree, person)

    def status(self, name: str) -> PromotionReport:
        """The last promotion of a capsule. Raises StateError when there is none."""
        found = self._session.store.promotions(self._project.id, name)
        if not found:
            raise _nothing(name)
        try:
            walked = stages.load_stages(self._session, self._project, found[0].spec.to)
        except AtollError:
            # The file has changed since.
            walked = ()
        return self._report(found[0], walked)

    def history(self, name: str | None = None) -> list[PromotionReport]:
        """Every promotion of the project, or of one capsule, the newest first."""
        found = self._session.store.promotions(self._project.id, name)
        return [self._report(promotion) for promotion in found]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        lock = self._session.promotion_lock(self._project.id)
        if not lock.acquire():
            raise StateError(
                f"another promotion of `{self._project.name}` is at work", hint="atoll history"
            )
        with lock:
            yield

    def _open(
        self,
        capsule: CapsuleRecord,
        walked: tuple[StageSpec, ...],
        message: str | None,
        checks: tuple[CheckSpec, ...],
    ) -> PromotionJournal:
        """The promotion of what the capsule has committed: a new one, or the one that is under
        way.
        """
        spec = self._spec(capsule, walked[-1].name, message)._replace(checks=checks)
        store = self._session.store
        known = store.promotions(self._project.id, capsule.name)
        last = known[0] if known else None
        if last is not None and last.state is PromotionState.UNDOING:
            raise StateError(
                f"the last promotion of `{capsule.name}` is being taken back: {last.spec.reason}",
                hint=f"atoll undo {capsule.name}",
            )
        is_same = last is not None and last.spec.commit == spec.commit
        if last is None or not is_same or last.state is PromotionState.UNDONE:
            return PromotionJournal(self._session, store.add_promotion(
                self._project.id, capsule.name, spec
            ))  # fmt: skip
        kept = last.spec._replace(
            to=spec.to,
            message=spec.message or last.spec.message,
            checks=spec.checks or last.spec.checks,
        )
        running = last._replace(state=PromotionState.RUNNING, ended_at=None, spec=kept)
        store.set_promotion(running)
        return PromotionJournal(self._session, running)

    def _spec(self, capsule: CapsuleRecord, to: str, message: str | None) -> PromotionSpec:
        name = capsule.name
        if capsule.branch is None:
            raise StateError(
                f"`{name}` is the checkout itself: its work is where it would land",
                hint="git log",
            )
        work = removal.find_work(self._session, capsule)
        if loose := [*work.uncommitted, *work.untracked]:
            shown = ", ".join(f"`{printable(path)}`" for path in loose[:_MOST_NAMES])
            more = f" and {len(loose) - _MOST_NAMES} more" if len(loose) > _MOST_NAMES else ""
            raise StateError(
                f"`{name}` has uncommitted work: {shown}{more}",
                hint=f'atoll commit {name} -m "…"; then: atoll promote {name}',
            )
        commit = exports.export(self._session, capsule).commit
        if commit == capsule.base_commit:
            raise StateError(f"`{name}` has committed nothing", hint=f"atoll run {name} -- COMMAND")
        agent = self._session.store.find_agent(capsule.id)
        return PromotionSpec(
            commit=commit,
            tree=prepared_work.tree_of(commit, repository=self._project.git_dir),
            base_commit=capsule.base_commit,
            base_ref=capsule.base_ref,
            level=capsule.level,
            network=isolation_plan(self._session, capsule).network,
            to=to,
            agent=agent.adapter if agent is not None else "",
            task=subject_of(agent.task.prompt) if agent is not None else "",
            message=message or "",
        )

    def _require_last(self, name: str | None) -> Promotion:
        found = self._session.store.promotions(self._project.id, name)
        for promotion in found:
            if promotion.state is PromotionState.UNDOING:
                return promotion
        for promotion in found:
            if undoing.find_effect(PromotionJournal(self._session, promotion)):
                return promotion
        what = f"of `{printable(name)}` " if name else ""
        raise StateError(f"no promotion {what}has done anything to undo", hint="atoll history")

    def _report(self, promotion: Promotion, walked: tuple[StageSpec, ...] = ()) -> PromotionReport:
        store = self._session.store
        steps = tuple(store.promotion_steps(promotion.id))
        ids = dict.fromkeys(number for step in steps for number in step.facts.checks)
        results = [store.check_result(number) for number in ids]
        trees = {step.facts.tree for step in steps}
        given = store.approvals(self._project.id, promotion.capsule)
        names = [stage.name for stage in walked] or list(dict.fromkeys(s.stage for s in steps))
        return PromotionReport(
            promotion=promotion,
            stages=tuple(names),
            steps=steps,
            results=tuple(result for result in results if result is not None),
            approvals=tuple(one for one in given if one.tree in trees | {promotion.spec.tree}),
        )


def _nothing(name: str) -> StateError:
    return StateError(
        f"`{printable(name)}` was never promoted", hint=f"atoll promote {printable(name)}"
    )
