"""The walk of one promotion through its stages, from wherever its journal says that it is.

Of each stage: its checks, the approval, the landing, the command, its health. What is done is
skipped; what was killed is completed, or, if it was a command, left for a person to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from atoll.engine.check.checks import Checker, CheckProgress, CheckTarget
from atoll.engine.check.selection import find_checks, select_checks
from atoll.engine.promotion import acceptance, landing_steps, prepared_work, stage_runs, targets
from atoll.engine.promotion.acceptance import Ask
from atoll.engine.promotion.journal import PromotionJournal, StoppedError, fail, wait
from atoll.engine.promotion.landing import BranchMovedError
from atoll.engine.promotion.owner_identity import describe_owner
from atoll.engine.promotion.prepared_work import LandingRequest, PreparedWork, WorkRange
from atoll.engine.state.session import Session
from atoll.host import git
from atoll.model.check import CheckResult, CheckSpec, CheckStatus
from atoll.model.errors import StateError
from atoll.model.names import printable
from atoll.model.promotion import (
    VERIFIED,
    PromotionSpec,
    StageSpec,
    StepAct,
    StepFacts,
    StepState,
)
from atoll.model.state import ProjectRecord

_MOST_MOVES = 5
"""How often the branch may move while the work is being brought onto it."""


class PromotionProgress(NamedTuple):
    """One step of a promotion, for a live display."""

    stage: str
    text: str
    check: CheckProgress | None = None


OnProgress = Callable[[PromotionProgress], None]


class WalkOptions(NamedTuple):
    """What the owner allows and wants to see."""

    accept: Collection[str] = ()
    ask: Ask | None = None
    again: bool = False
    """Whether what has failed, or whose end is unknown, is tried again."""
    on_progress: OnProgress | None = None


class StageWalk:
    def __init__(
        self,
        session: Session,
        project: ProjectRecord,
        journal: PromotionJournal,
        stages: Sequence[StageSpec],
        options: WalkOptions,
    ) -> None:
        self._session = session
        self._project = project
        self._journal = journal
        self._stages = stages
        self._options = options
        self._stage = ""
        self.results: dict[str, CheckResult] = {}
        """By name, the last of each check."""
        self._checked_again: set[tuple[str, str]] = set()

    @property
    def _spec(self) -> PromotionSpec:
        return self._journal.promotion.spec

    def walk(self) -> None:
        """Passes every stage. Raises StoppedError where it stops, and AtollErrors."""
        for stage in self._stages:
            self._stage = stage.name
            if self._journal.find(stage.name, StepAct.PASS) is not None:
                continue
            try:
                self._require_not_failed(stage)
                self._pass(stage)
            except StoppedError as stopped:
                raise self._with_undo(stage, stopped) from stopped
            commit, tree = self._current()
            self._journal.record(stage.name, StepAct.PASS, StepFacts(commit=commit, tree=tree))
            self._say("passed")
            self._session.reach("promote.passed", self._journal.promotion.capsule)

    def _pass(self, stage: StageSpec) -> None:
        commit, tree = self._current()
        if stage.name == VERIFIED or not stage.lands:
            specs = self._specs(stage)
            if specs:
                self._check(stage, commit, tree, self._spec.base_commit, specs)
            if stage.name == VERIFIED:
                self._session.reach("promote.verified", self._journal.promotion.capsule)
        if stage.lands:
            self._land(stage)
            commit, tree = self._current()
        else:
            self._require_approval(stage, tree)
        stage_runs.run_stage(
            self._session, self._project, self._journal, stage, commit, tree,
            branch=self._branch(), again=self._options.again, say=self._say,
        )  # fmt: skip

    def _current(self) -> tuple[str, str]:
        """The commit and the tree that later stages are about: what has landed, if anything."""
        landed = [
            step.facts for step in self._journal.steps()
            if step.act is StepAct.LAND and step.state is StepState.DONE
        ]  # fmt: skip
        if landed:
            return landed[-1].new, landed[-1].tree
        return self._spec.commit, self._spec.tree

    def _branch(self) -> str:
        landed = [
            step.facts.ref for step in self._journal.steps()
            if step.act is StepAct.LAND and step.state is StepState.DONE
        ]  # fmt: skip
        return landed[-1].removeprefix("refs/heads/") if landed else ""

    def _say(self, text: str) -> None:
        if self._options.on_progress is not None:
            self._options.on_progress(PromotionProgress(self._stage, text))

    # Checks

    def _specs(self, stage: StageSpec) -> list[CheckSpec]:
        """The checks of a stage; of `verified` all of the project, unless it names some, and those
        that were given with the promotion.
        """
        more = self._spec.checks if stage.name == VERIFIED else ()
        if not stage.checks and (stage.name != VERIFIED or (more and not self._has_own())):
            return list(more)
        chosen = select_checks(self._session, self._project, stage.checks)
        known = {spec.digest for spec in chosen}
        return [*chosen, *(spec for spec in more if spec.digest not in known)]

    def _has_own(self) -> bool:
        return bool(find_checks(self._session, self._project))

    def _required(self, last: StageSpec) -> list[CheckSpec]:
        """The checks of every stage up to one, which a tree must have passed to land there."""
        found: dict[str, CheckSpec] = {}
        for stage in self._stages[: self._stages.index(last) + 1]:
            found |= {spec.digest: spec for spec in self._specs(stage)}
        return list(found.values())

    def _check(
        self,
        stage: StageSpec,
        commit: str,
        tree: str,
        base: str,
        specs: Sequence[CheckSpec],
    ) -> None:
        """Raises StoppedError unless every check passes on exactly this tree."""
        self._say("checking " + ", ".join(spec.name for spec in specs))
        before = self._journal.find(stage.name, StepAct.CHECK)
        facts = StepFacts(commit=commit, tree=tree)
        if before is not None and before.state is StepState.STARTED:
            step = self._journal.set(before, StepState.STARTED, facts)
        else:
            step = self._journal.start(stage.name, StepAct.CHECK, facts)
        checker = Checker(self._session, self._project, on_progress=self._report)
        target = CheckTarget(
            commit, tree, base, level=self._spec.level, network=self._spec.network or None
        )
        wanted = {(tree, spec.digest) for spec in specs}
        again = self._options.again and not wanted <= self._checked_again
        self._checked_again |= wanted
        results = checker.check(target, specs, again=again)
        self.results |= {result.name: result for result in results}
        facts = facts._replace(checks=tuple(result.id for result in results if result.id))
        bad = [result for result in results if not result.passed or result.tree != tree]
        if not bad:
            self._journal.set(step, StepState.DONE, facts)
            return
        said = "; ".join(_describe(result) for result in bad)
        self._journal.set(step, StepState.FAILED, facts._replace(message=said))
        is_tool = all(result.status is CheckStatus.ERROR for result in bad)
        raise fail(
            f"not every check passes on tree {tree[:10]}: {said}",
            "correct it in the capsule and commit; or, to check the same tree once more: "
            + self._hint("--again"),
            exit_code=5 if is_tool else 1,
        )

    def _report(self, target: CheckTarget, progress: CheckProgress) -> None:
        del target
        if self._options.on_progress is not None:
            text = f"{progress.name}: {progress.phase}"
            self._options.on_progress(PromotionProgress(self._stage, text, progress))

    def _hint(self, *flags: str) -> str:
        name = self._journal.promotion.capsule
        to = self._stages[-1].name
        return " ".join(["atoll promote", name, "--to", to, *flags])

    # Landing

    def _land(self, stage: StageSpec) -> None:
        landed = self._journal.find(stage.name, StepAct.LAND)
        if landed is not None and landed.state is StepState.DONE:
            return
        branch = targets.find_branch(self._session, self._project, stage, self._spec)
        way = stage.merge or "squash"
        ref = f"refs/heads/{branch}"
        for _ in range(_MOST_MOVES):
            old = git.find_ref(ref, cwd=self._project.git_dir)
            if old is None:
                raise targets.no_branch(branch)
            work = self._prepared(stage, branch, way, old)
            self._require_ready(stage, work)
            if work.is_there:
                facts = StepFacts(
                    commit=old, tree=work.tree, ref=ref, old=old, new=old, way=way,
                    message="the branch has this work already",
                )  # fmt: skip
                self._journal.record(stage.name, StepAct.LAND, facts)
                return
            if self._try_landing(stage, work, ref, way):
                return
        raise wait(
            f"the branch `{printable(branch)}` moved {_MOST_MOVES} times while the work was being "
            "brought onto it",
            self._hint(),
        )

    def _prepared(self, stage: StageSpec, branch: str, way: str, old: str) -> PreparedWork:
        if (kept := self._kept_conflict(stage, old)) is not None:
            raise kept
        start = prepared_work.find_start(
            self._project.git_dir, self._spec, old,
            targets.landed_before(self._session, self._project, self._journal.promotion, branch),
        )  # fmt: skip
        work = WorkRange(start, self._spec.commit)
        if start != old:
            self._say(f"bringing the work onto {printable(branch)} at {old[:10]}")
        request = LandingRequest(self._journal.promotion, way, branch, work)
        try:
            found = prepared_work.prepare_work(self._session, self._project, request, old)
        except StoppedError as stopped:
            facts = StepFacts(
                old=old, kept=stopped.stop.kept, message=stopped.stop.reason,
                output=stopped.stop.hint,
            )  # fmt: skip
            step = self._journal.start(stage.name, StepAct.LAND, facts)
            self._journal.set(step, StepState.FAILED)
            raise
        self._session.reach("promote.brought", self._journal.promotion.capsule)
        return found

    def _kept_conflict(self, stage: StageSpec, old: str) -> StoppedError | None:
        """The conflict with the same commit that a capsule holds already."""
        known = self._journal.find(stage.name, StepAct.LAND)
        if known is None or not known.facts.kept or known.facts.old != old:
            return None
        names = {one.name for one in self._session.store.capsules(self._project.id)}
        if known.facts.kept not in names:
            return None
        return wait(known.facts.message, known.facts.output, kept=known.facts.kept)

    def _require_ready(self, stage: StageSpec, work: PreparedWork) -> None:
        """What is to land has passed every check, and whoever has to has said yes to it."""
        specs = self._required(stage)
        self._check(stage, work.new, work.tree, work.old, specs)
        acceptance.require_accepted(
            self._journal, stage.name, self._project.git_dir, work.old, work.new,
            work.tree, stages=self._stages, accept=self._options.accept,
            ask=self._options.ask, by=describe_owner(self._project),
        )  # fmt: skip
        self._require_approval(stage, work.tree)
        self._session.reach("promote.accepted", self._journal.promotion.capsule)

    def _try_landing(self, stage: StageSpec, work: PreparedWork, ref: str, way: str) -> bool:
        """Whether it has landed; not if the branch has moved meanwhile."""
        if prepared_work.tree_of(work.new, repository=self._project.git_dir) != work.tree:
            raise StateError("the commit to land does not have the tree that was verified")
        branch = printable(ref.removeprefix("refs/heads/"))
        self._say(f"landing on {branch} ({way})")
        facts = StepFacts(
            commit=work.new, tree=work.tree, ref=ref, old=work.old,
            new=work.new, way=way,
        )  # fmt: skip
        step = self._journal.start(stage.name, StepAct.LAND, facts)
        try:
            landing_steps.carry_out(self._session, self._project, self._journal, step)
        except BranchMovedError:
            return False
        return True

    # Approvals

    def _require_approval(self, stage: StageSpec, tree: str) -> None:
        if not stage.approve:
            return
        promotion = self._journal.promotion
        given = self._session.store.approvals(self._project.id, promotion.capsule)
        if any((one.stage, one.tree) == (stage.name, tree) for one in given):
            return
        raise wait(
            f"the stage `{stage.name}` needs an approval of tree {tree[:10]}",
            f"atoll approve {promotion.capsule} {stage.name}; then: {self._hint()}",
            stage=stage.name, tree=tree,
        )  # fmt: skip

    # Failures

    def _require_not_failed(self, stage: StageSpec) -> None:
        """A stage whose command or health has failed is tried again only when asked."""
        if self._options.again:
            return
        for act in (StepAct.RUN, StepAct.HEALTH):
            found = self._journal.find(stage.name, act)
            if found is not None and found.state is StepState.FAILED:
                raise fail(found.facts.message, self._hint("--again"))

    def _with_undo(self, stage: StageSpec, stopped: StoppedError) -> StoppedError:
        """Undoes what a stage did that has failed."""
        return stage_runs.undo_failed(
            self._session, self._project, self._journal, stage, stopped, say=self._say
        )


def _describe(result: CheckResult) -> str:
    """Which check has no pass, and why."""
    why = {
        CheckStatus.FLAKY: "flaky: it failed before it passed",
        CheckStatus.TIMEOUT: "timed out",
        CheckStatus.FAILED: f"failed with exit code {result.exit_code}",
    }.get(result.status, str(result.status))
    message = printable(result.message) if result.status is CheckStatus.ERROR else ""
    return f"`{result.name}` {why}" + (f": {message}" if message else "")
