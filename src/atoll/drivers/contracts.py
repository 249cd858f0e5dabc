"""Every contract on one page.

All drivers share four verbs: `check` says what this host lacks (each with its cure), `plan` is
pure, `apply` acts, `release` undoes it: idempotent, and callable from a process that never saw
`apply`. `release` never destroys work: whoever calls it has called `save` first.

A conformance suite in `atoll.testing.conformance` holds each driver, and its fake, to this page.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from atoll.model.plan import Enclosure, IsolationPlan, WorkspacePlan
from atoll.model.state import Problem, RecoveryPoint, Work


class WorkspaceRequest(NamedTuple):
    name: str
    repository: str
    checkout: str
    base_commit: str
    path: str
    """Where the workspace may be made; below Atoll's home."""

    def planned(self, driver: str, *, path: str, branch: str | None) -> WorkspacePlan:
        """The request as a driver decided it."""
        return WorkspacePlan(
            driver=driver,
            repository=self.repository,
            checkout=self.checkout,
            path=path,
            branch=branch,
            base_commit=self.base_commit,
        )


class IsolationRequest(NamedTuple):
    workspace: str
    directory: str
    variables: Mapping[str, str]
    author: str
    email: str


class WorkspaceDriver(Protocol):
    """Gives a capsule its files."""

    @property
    def name(self) -> str: ...

    def check(self) -> list[Problem]:
        """What this host lacks. Changes nothing."""

    def plan(self, request: WorkspaceRequest) -> WorkspacePlan:
        """Pure."""

    def apply(self, plan: WorkspacePlan, *, lock: int) -> None:
        """Makes the workspace. Tools that it starts inherit `lock`.

        Raises StateError when the branch or the path is taken, DriverError when a tool fails.
        May leave something half-made behind in either case: the caller releases.
        """

    def release(self, plan: WorkspacePlan, *, home: Path, keep_branch: bool) -> None:
        """Removes what `apply` made, whole or half; fine when there is nothing.

        Raises DriverError when a tool fails; calling it again then goes on where it stopped.
        """

    def work(self, plan: WorkspacePlan, inside: Enclosure) -> Work:
        """What exists only in this workspace and its branch. A plan without a branch asks what
        would be lost if the branch stayed. Questions are asked inside the capsule.
        """

    def save(
        self, plan: WorkspacePlan, inside: Enclosure, *, point: str, home: Path
    ) -> RecoveryPoint | None:
        """Stores all work under the recovery point `point`; None when there is none.

        Afterwards `release` loses nothing. Idempotent for the same `point`.
        """

    def restore(self, plan: WorkspacePlan, point: RecoveryPoint, *, lock: int) -> None:
        """Brings a recovery point's files and index state into a fresh workspace."""

    def points(self, repository: str) -> list[RecoveryPoint]:
        """The recovery points that this driver keeps for a repository, the newest first."""

    def drop(self, repository: str, point: RecoveryPoint, *, home: Path) -> None:
        """Forgets a recovery point, at its owner's explicit word."""


class IsolationDriver(Protocol):
    """Says how to start a process inside a capsule."""

    @property
    def name(self) -> str: ...

    def check(self) -> list[Problem]:
        """What this host lacks. Changes nothing."""

    def plan(self, request: IsolationRequest) -> IsolationPlan:
        """Pure."""

    def apply(self, plan: IsolationPlan) -> None:
        """Makes the private places."""

    def release(self, plan: IsolationPlan, *, home: Path) -> None:
        """Removes them; fine when there are none."""

    def enclosure(self, plan: IsolationPlan, owner: Mapping[str, str]) -> Enclosure:
        """How to start a process inside. `owner` is the owner's environment, of which only
        allow-listed parts are taken. Raises IsolationError when a wall cannot be built."""
