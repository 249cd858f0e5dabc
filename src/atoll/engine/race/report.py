"""A race as it is now: what its table, `--json` and the exit status say."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from atoll.engine.race import ends, unattended
from atoll.engine.race.field import Field
from atoll.engine.race.unattended import UnattendedEnd
from atoll.host import locks
from atoll.model.check import CheckResult, CheckSpec
from atoll.model.race import Candidate, CandidateState, Race


class CandidateStatus(NamedTuple):
    """A candidate as it was observed at one moment."""

    candidate: Candidate
    checks: tuple[CheckResult, ...]
    """The results on its tree that are known, in the order of the race's checks."""
    took_s: float | None
    """How long it has run; None before it has begun."""
    has_capsule: bool

    @property
    def name(self) -> str:
        return self.candidate.name

    def passes(self, checks: Sequence[CheckSpec]) -> bool:
        """Whether it has ended with a tree that passes all of them."""
        if self.candidate.state is not CandidateState.DONE:
            return False
        passed = {result.digest for result in self.checks if result.passed}
        return all(spec.digest in passed for spec in checks)


class RaceStatus(NamedTuple):
    """A race as it was observed at one moment."""

    race: Race
    candidates: tuple[CandidateStatus, ...]
    base: tuple[CheckResult, ...]
    """The results on the tree of the base."""
    is_carried_on: bool
    """Whether a process carries it on."""
    promotion: UnattendedEnd | None = None
    """What came of `--promote`; None before that, and without it."""

    @property
    def is_good(self) -> bool:
        """Whether a candidate passes every check; without checks, whether one left a tree. With
        `--promote`, whether the winner is where it was to go.
        """
        if self.race.spec.promote_to:
            return self.promotion is not None and self.promotion.is_good
        return any(one.passes(self.race.spec.checks) for one in self.candidates)


def look(field: Field) -> RaceStatus:
    """Observes a race; changes nothing."""
    session, race = field.session, field.race
    now = time.time()
    candidates = []
    for candidate in session.store.candidates(race.id):
        capsule = field.find_capsule(candidate)
        shown = candidate
        if capsule is not None and not candidate.has_ended:
            shown = ends.with_usage(field, candidate, capsule)
        candidates.append(
            CandidateStatus(
                candidate=shown._replace(is_removed=capsule is None and candidate.run > 0),
                checks=find_results(field, candidate.tree),
                took_s=_took_s(candidate, now),
                has_capsule=capsule is not None,
            )
        )
    return RaceStatus(
        race=race,
        candidates=tuple(candidates),
        base=_results_of_base(field),
        is_carried_on=locks.is_locked(session.race_lock(race.id).path),
        promotion=unattended.find_end(field) if race.spec.promote_to else None,
    )


def find_results(field: Field, tree: str) -> tuple[CheckResult, ...]:
    """The results of the race's checks on a tree, as far as they are known."""
    if not tree:
        return ()
    store, project = field.session.store, field.project.id
    found = []
    for spec in field.race.spec.checks:
        result = store.find_check_result(project, tree, spec.digest)
        if result is not None:
            # Checks with the same definition share results, whatever their names are.
            found.append(result._replace(name=spec.name))
    return tuple(found)


def _results_of_base(field: Field) -> tuple[CheckResult, ...]:
    if not field.race.spec.checks:
        return ()
    tree = ends.find_tree(field.race.base_commit, repository=field.project.git_dir)
    return find_results(field, tree)


def _took_s(candidate: Candidate, now: float) -> float | None:
    if candidate.started_at is None:
        return None
    return max(0.0, (candidate.ended_at or now) - candidate.started_at)
