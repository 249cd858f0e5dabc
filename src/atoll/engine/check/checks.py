"""Runs checks on an exact tree, each in a fresh capsule, and stores what was observed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from atoll.engine.state.session import Session
from atoll.model.check import CheckResult, CheckSpec
from atoll.model.state import ProjectRecord


class CheckTarget(NamedTuple):
    """What is checked."""

    commit: str
    """In the owner's repository."""
    tree: str
    base_commit: str
    """What the work is based on."""
    level: str | None = None
    """None: the project's own."""


class CheckProgress(NamedTuple):
    """One step of a check, for a live display."""

    name: str
    phase: str
    """`queued`, `running` or `ended`."""
    result: CheckResult | None = None


class Checker:
    """Runs checks on trees of one project. May be used by several threads at once."""

    def __init__(
        self,
        session: Session,
        project: ProjectRecord,
        *,
        most: int | None = None,
        on_progress: Callable[[CheckTarget, CheckProgress], None] | None = None,
    ) -> None:
        """`most` checks run at once, of all calls together; None: as many as there are CPUs."""
        self._session = session
        self._project = project
        self._most = most
        self._on_progress = on_progress

    def check(
        self, target: CheckTarget, specs: Sequence[CheckSpec], *, again: bool = False
    ) -> list[CheckResult]:
        """The results in the order of `specs`. A result for the same tree and definition that is
        stored is returned, and not observed anew unless `again`.
        """
        raise NotImplementedError


def select_checks(
    session: Session, project: ProjectRecord, names: Sequence[str] = ()
) -> list[CheckSpec]:
    """The checks with these names, or all: those that the project file declares, else those that
    are detected.

    Raises StateError when the file is not trusted or when there are no checks, SpecError for an
    unknown name, PrerequisiteError for one that needs services.
    """
    raise NotImplementedError
