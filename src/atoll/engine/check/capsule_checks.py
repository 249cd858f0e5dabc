"""`atoll check`: the checks of what one capsule has committed, or a quick look in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from atoll.engine.check import attempts, targets
from atoll.engine.check.checks import (
    Checker,
    CheckProgress,
    CheckTarget,
    build_result,
    select_checks,
)
from atoll.engine.state.session import Session
from atoll.model.check import CheckResult, CheckSource, CheckSpec, CheckStatus
from atoll.model.state import CapsuleRecord, ProjectRecord

OnProgress = Callable[[CheckProgress], None]


def silent(progress: CheckProgress) -> None:
    del progress


class CheckReport(NamedTuple):
    """What the checks of a capsule came to."""

    capsule: str
    commit: str
    """Empty for a look in the capsule itself."""
    tree: str
    """Likewise."""
    results: tuple[CheckResult, ...]
    is_detected: bool = False
    """Whether the project declares no checks, and these were detected."""
    has_uncommitted: bool = False
    """Whether the capsule has changes that are not part of the tree."""

    @property
    def passed(self) -> bool:
        return all(result.passed for result in self.results)

    def render_junit(self) -> str:
        """The report as JUnit XML."""
        from atoll.engine.check import junit_xml  # noqa: PLC0415 - for one option

        return junit_xml.render_junit(
            self.capsule, self.results, commit=self.commit, tree=self.tree
        )

    @property
    def is_here(self) -> bool:
        return not self.tree


class CapsuleChecks(NamedTuple):
    """The checks that were chosen for one capsule."""

    session: Session
    project: ProjectRecord
    capsule: CapsuleRecord
    specs: tuple[CheckSpec, ...]

    @property
    def is_detected(self) -> bool:
        return any(spec.source is CheckSource.DETECTED for spec in self.specs)

    def check(
        self,
        target: CheckTarget,
        *,
        again: bool = False,
        most: int | None = None,
        on_progress: OnProgress = silent,
    ) -> CheckReport:
        """Checks a tree in fresh capsules."""
        checker = Checker(
            self.session, self.project, most=most,
            on_progress=lambda _, progress: on_progress(progress),
        )  # fmt: skip
        results = checker.check(target, self.specs, again=again)
        return CheckReport(
            capsule=self.capsule.name,
            commit=target.commit,
            tree=target.tree,
            results=tuple(results),
            is_detected=self.is_detected,
        )

    def look(self, start: attempts.Start, *, on_progress: OnProgress = silent) -> CheckReport:
        """Runs the checks in the capsule itself, one after the other. Nothing is stored: what lies
        around there may decide the result.
        """
        nowhere = CheckTarget(commit="", tree="", base_commit=self.capsule.base_commit)
        for spec in self.specs:
            on_progress(CheckProgress(spec.name, "queued"))
        results = []
        for spec in self.specs:
            on_progress(CheckProgress(spec.name, "running"))
            at = time.time()
            made: list[attempts.Attempt] = []
            while len(made) <= spec.retries:
                made.append(attempts.run_in(self.session, self.capsule, spec, start))
                if made[-1].status in (CheckStatus.PASSED, CheckStatus.ERROR):
                    break
            result = build_result(
                self.session, self.project, nowhere, spec, attempts.combine(made),
                at=at, count=len(made),
            )  # fmt: skip
            on_progress(CheckProgress(spec.name, "ended", result))
            results.append(result)
        return CheckReport(self.capsule.name, "", "", tuple(results), self.is_detected)


def project_of(session: Session, capsule: CapsuleRecord) -> ProjectRecord:
    return next(one for one in session.store.projects() if one.id == capsule.project_id)


def choose(session: Session, capsule: CapsuleRecord, names: Sequence[str]) -> CapsuleChecks:
    """Raises what `select_checks` raises."""
    project = project_of(session, capsule)
    specs = tuple(select_checks(session, project, names))
    return CapsuleChecks(session, project, capsule, specs)


def find_target(session: Session, capsule: CapsuleRecord) -> tuple[CheckTarget, bool]:
    """What a capsule has committed, and whether it has changes besides that. The caller holds its
    lock.
    """
    target = targets.target_of(session, capsule)
    return target, targets.has_uncommitted(session, capsule, target)
