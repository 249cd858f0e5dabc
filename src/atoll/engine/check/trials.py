"""`atoll try`: a command whose effects are kept only if the checks pass.

A snapshot is taken first. The commits of the command are exported only when they are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from atoll.engine.capsule import exports, foreground_runs
from atoll.engine.check import targets
from atoll.engine.check.capsule_checks import CapsuleChecks, CheckReport, OnProgress, project_of
from atoll.engine.check.capsule_handle import CapsuleHandle
from atoll.engine.check.selection import find_checks, select_checks
from atoll.engine.history.workspace import require_layers
from atoll.engine.run import runs
from atoll.engine.state.session import Session
from atoll.model.errors import StateError
from atoll.model.names import printable
from atoll.model.state import CapsuleRecord, Run, Snapshot, require_outcome


class TrialReport(NamedTuple):
    """What came of a trial."""

    kept: bool
    before: Snapshot
    """The state before the command."""
    attempt: Snapshot | None
    """The rejected attempt, when it was rolled back."""
    run: Run
    checks: CheckReport | None
    """None when there are none, or when the command itself failed."""


class Trial:
    """A command in a capsule that is rolled back unless it is good."""

    def __init__(self, subject: CapsuleHandle, checks: CapsuleChecks, before: Snapshot) -> None:
        self._subject = subject
        self._session = subject.session
        self._checks = checks
        self.before = before
        self._is_over = False
        """Whether it was kept or rolled back."""

    @property
    def has_checks(self) -> bool:
        return bool(self._checks.specs)

    def await_end(self, run: Run) -> Run:
        """Waits for the end of the command, whose commits are not exported yet."""
        return foreground_runs.conclude(self._session, self._subject.record, run, is_exported=False)

    def conclude(
        self,
        run: Run,
        *,
        most: int | None = None,
        on_progress: OnProgress,
    ) -> TrialReport:
        """Checks everything that the ended command has left, and keeps it or rolls it back."""
        report = None
        is_good = require_outcome(run).good
        if is_good and self.has_checks:
            with self._subject.alone():
                target = targets.target_with_everything(self._session, self._subject.record)
            report = self._checks.check(target, most=most, on_progress=on_progress)
            is_good = report.passed
        if is_good:
            self._is_over = True
            exports.export_after_run(self._session, self._subject.record)
            return TrialReport(kept=True, before=self.before, attempt=None, run=run, checks=report)
        attempt = self.roll_back()
        return TrialReport(kept=False, before=self.before, attempt=attempt, run=run, checks=report)

    def roll_back(self) -> Snapshot:
        """Stops what is left of the command, and returns to the state before it. Returns the
        snapshot that holds the attempt.
        """
        runs.stop_all(self._session, self._subject.record)
        attempt = self._subject.rollback(self.before)
        self._is_over = True
        return attempt

    def abandon(self) -> Snapshot | None:
        """Rolls back after an error or an interrupt, unless it was kept or rolled back before."""
        return None if self._is_over else self.roll_back()


def begin(subject: CapsuleHandle, names: Sequence[str], argv: Sequence[str]) -> Trial:
    """Takes the snapshot. Raises StateError at a level without snapshots, and while anything runs
    in the capsule, since that could not be told from the command.
    """
    session, capsule = subject.session, subject.record
    require_layers(session, capsule)
    if living := runs.living(session, capsule):
        raise StateError(
            f"`{capsule.name}` is still running " + ", ".join(f"`{run.label}`" for run in living),
            hint=f"atoll stop {capsule.name}",
        )
    checks = _chosen(session, capsule, names)
    command = " ".join(argv)[:60]
    before = subject.snapshot(f"before try `{printable(command)}`", automatic=True)
    return Trial(subject, checks, before)


def _chosen(session: Session, capsule: CapsuleRecord, names: Sequence[str]) -> CapsuleChecks:
    """All checks of the project, of which there may be none, or the named ones."""
    project = project_of(session, capsule)
    has_any = bool(names) or bool(find_checks(session, project))
    specs = select_checks(session, project, names) if has_any else []
    return CapsuleChecks(session, project, capsule, tuple(specs))
