"""The results of a race: compared, the winner picked, new candidates grafted from others."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.engine.check.checks import Checker, CheckTarget
from atoll.engine.race.evidence import comparison, cross_tests, judging, ranking
from atoll.engine.race.evidence.candidate_diffs import BoundedPatch, load_patch
from atoll.engine.race.evidence.ranking import Choice
from atoll.engine.race.field import Field
from atoll.engine.race.grafting import Grafting, parse_part
from atoll.host import files
from atoll.model.check import CheckResult
from atoll.model.errors import AtollError, Interrupted, SpecError, StateError
from atoll.model.evidence import BASE, CandidateEvidence, RaceEvidence
from atoll.model.names import printable
from atoll.model.race import Candidate, CandidateState, Race, RaceState
from atoll.model.state import RecoveryPoint


class Picked(NamedTuple):
    """What `pick` decided, and on what evidence."""

    choice: Choice
    evidence: RaceEvidence
    by_hand: bool
    obstacle: str = ""
    """Why no rule would have picked a winner that was named by hand."""


class Grafted(NamedTuple):
    """A new candidate, and what its checks say."""

    race: Race
    candidate: Candidate
    branch: str
    checks: tuple[CheckResult | None, ...]

    @property
    def is_good(self) -> bool:
        return all(result is not None and result.passed for result in self.checks)


class Discarded(NamedTuple):
    """A loser whose capsule was removed."""

    name: str
    point: RecoveryPoint | None


class RaceResults:
    """A handle on the results of one race."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._session = field.session
        self._project = field.project
        self.race = field.race

    def candidates(self) -> list[Candidate]:
        """As they are stored, and whether their capsules are still there."""
        return [
            one._replace(is_removed=one.is_removed or self._is_gone(one))
            for one in self._session.store.candidates(self.race.id)
        ]

    def _is_gone(self, one: Candidate) -> bool:
        had_capsule = one.run > 0 or bool(one.spec.graft)
        return one.has_ended and had_capsule and self._field.find_capsule(one) is None

    def compare(self) -> RaceEvidence:
        """What is known of the candidates; reads only."""
        return comparison.gather(self._session, self._project, self.race, self.candidates())

    def diff(self, one: str, other: str, *, stat: bool = False) -> BoundedPatch:
        """The difference between the trees of two candidates; `base` is what they started from."""
        trees = [self._tree(name) for name in (one, other)]
        return load_patch(self._project.git_dir, trees[0], trees[1], stat=stat)

    def patch(self, one: CandidateEvidence, *, limit_bytes: int) -> BoundedPatch:
        """What a candidate changes of the base."""
        base = self.race.base_commit
        tree = one.candidate.tree or base
        return load_patch(self._project.git_dir, base, tree, limit_bytes=limit_bytes)

    def _tree(self, name: str) -> str:
        if name == BASE:
            return self.race.base_commit
        one = self.require(name)
        if not one.tree:
            raise StateError(
                f"`{name}` is {one.state} and has left no tree",
                hint=f"atoll race show {self.race.name}",
            )
        return one.tree

    def require(self, name: str) -> Candidate:
        candidates = self.candidates()
        found = next((one for one in candidates if one.name == name), None)
        if found is None:
            listed = ", ".join(f"`{one.name}`" for one in candidates)
            raise StateError(
                f"the race `{self.race.name}` has no candidate `{printable(name)}`",
                hint=f"one of {listed}",
            )
        return found

    def pick(self, name: str | None = None, *, rule: str = "", judge: str = "") -> Picked:
        """Picks the winner by hand, or by a rule, and stores it; without `name` and `rule`, the
        rule of the race.

        No winner is a result: then what was stored stays. Raises SpecError for a rule that cannot
        be understood, and DriverError for a judge that fails.
        """
        if name is not None and (rule or judge):
            raise SpecError(
                "a winner that is named needs no rule and no judge", hint="omit one of them"
            )
        evidence = self.compare()
        if name is not None:
            return self._pick_by_hand(evidence, name)
        self._require_over(evidence)
        rule = rule or self.race.spec.rule
        judge = judge or self.race.spec.judge
        if judge:
            # A mistake in the rule is reported before the judge is asked.
            ranking.parse_rule(rule or ranking.JUDGED_RULE, evidence)
            judgement = judging.ensure_judgement(self._session, self._project, evidence, judge)
            evidence = self.compare()
            if judgement is not None and not rule:
                rule = ranking.JUDGED_RULE
        choice = ranking.pick_by_rule(evidence, rule)
        if choice.winner is not None:
            self._store_winner(choice.winner)
        return Picked(choice, evidence._replace(race=self.race), by_hand=False)

    def _require_over(self, evidence: RaceEvidence) -> None:
        """A rule that decides before all have ended might pick another one a minute later."""
        over = (CandidateState.DONE, CandidateState.FAILED)
        open_ones = [o.name for o in evidence.candidates if o.candidate.state not in over]
        if open_ones or self.race.state is not RaceState.FINISHED:
            listed = ", ".join(f"`{name}`" for name in open_ones[:5])
            still = f": {listed}" if listed else ""
            grafts = [o.candidate.spec.graft for o in evidence.candidates if o.name in open_ones]
            goes_on = f"atoll race resume {self.race.name}"
            if self.race.state is RaceState.FINISHED and grafts[0]:
                # A killed command has left it.
                goes_on = f"atoll graft {self.race.name} {shlex.join(grafts[0])}"
            raise StateError(
                f"the race `{self.race.name}` has not ended{still}",
                hint=f"{goes_on}, or: atoll pick {self.race.name} NAME",
            )

    def _pick_by_hand(self, evidence: RaceEvidence, name: str) -> Picked:
        candidate = self.require(name)
        if not candidate.tree:
            raise StateError(
                f"`{name}` is {candidate.state} and has left no tree",
                hint=f"atoll race show {self.race.name}",
            )
        one = evidence.find(name)
        obstacle = "" if one is None else one.obstacle
        self._store_winner(name)
        choice = Choice("", name, "named by hand", ranking=(name,))
        return Picked(choice, evidence._replace(race=self.race), by_hand=True, obstacle=obstacle)

    def _store_winner(self, name: str) -> None:
        self.race = self._session.store.set_winner(self.race, name)

    def save_page(self, page: str, path: str) -> None:
        """Writes a page that `compare` rendered. Raises StateError where it cannot be written."""
        try:
            files.write_atomic(Path(path).absolute(), page.encode(errors="replace"), mode=0o644)
        except OSError as error:
            raise StateError(
                f"`{printable(path)}` cannot be written: {error.strerror}", hint="--html FILE"
            ) from error

    def require_finished(self) -> None:
        """Raises StateError while candidates are at work, or are still to be started."""
        if self.race.state is not RaceState.FINISHED:
            raise StateError(
                f"the race `{self.race.name}` has not ended: no candidate is discarded",
                hint=f"atoll race stop {self.race.name}, or: atoll race resume {self.race.name}",
            )

    def discard_losers(self) -> list[Discarded]:
        """Removes the capsules and branches of the candidates that were not picked. Their work is
        kept in recovery points.
        """
        self.require_finished()
        if self.race.winner is None:
            raise StateError(
                f"the race `{self.race.name}` has no winner", hint=f"atoll pick {self.race.name}"
            )
        found = []
        for one in self.candidates():
            capsule = self._field.find_capsule(one)
            if one.name == self.race.winner or one.is_removed:
                continue
            if capsule is not None:
                [point] = self._field.acts.remove([capsule], force=True)
                found.append(Discarded(one.name, point))
            self._session.store.set_candidate(one._replace(is_removed=True))
        return found

    def graft(
        self,
        words: Sequence[str],
        *,
        name: str | None = None,
        checker: Checker | None = None,
        on_progress: cross_tests.OnProgress | None = None,
    ) -> Grafted:
        """Makes a candidate of parts of others, `NAME` or `NAME:PATH`, and checks it as the rest.

        A graft that was interrupted is continued when it is asked for again.
        """
        parts = [parse_part(word) for word in words]
        if not parts:
            raise SpecError("a graft has at least one part", hint="NAME:src/parser")
        grafting = Grafting(self._field)
        chosen = grafting.plan_name(parts, name)
        commit, tree = grafting.compose(parts)
        if chosen not in {one.name for one in self.candidates()}:
            grafting.require_free(chosen, commit)
        candidate = grafting.add(chosen, parts, commit, tree)
        try:
            capsule = grafting.make_capsule(candidate)
        except Interrupted:
            raise
        except AtollError as error:
            failed = candidate._replace(state=CandidateState.FAILED, reason=error.message)
            self._session.store.set_candidate(failed)
            raise
        checker = checker or Checker(self._session, self._project)
        done = self._check(candidate, checker, on_progress)
        checks = cross_tests.find_results(
            self._session, self._project, done.tree, self.race.spec.checks
        )
        return Grafted(self.race, done, str(capsule.branch), tuple(checks))

    def _check(
        self, candidate: Candidate, checker: Checker, on_progress: cross_tests.OnProgress | None
    ) -> Candidate:
        spec = self.race.spec
        target = CheckTarget(
            candidate.commit, candidate.tree, self.race.base_commit, spec.level, spec.network
        )
        if spec.checks:
            checker.check(target, spec.checks)
        done = candidate._replace(state=CandidateState.DONE, reason="")
        every = [done if one.name == done.name else one for one in self.candidates()]
        cross_tests.run_cross_tests(
            self._session, self._project, self.race, every, checker, on_progress
        )
        self._session.store.set_candidate(done)
        return done
