"""The owner's checkout itself: the workspace of level `none`. Makes nothing, removes nothing."""

from __future__ import annotations

from pathlib import Path

from atoll.drivers.contracts import WorkspaceRequest
from atoll.model.plan import Enclosure, WorkspacePlan
from atoll.model.state import Problem, RecoveryPoint, Work


class CheckoutWorkspace:
    name = "checkout"

    def check(self, home: Path) -> list[Problem]:
        del home
        return []

    def plan(self, request: WorkspaceRequest) -> WorkspacePlan:
        return request.planned(self.name, path=request.checkout, branch=None)

    def apply(self, plan: WorkspacePlan, *, lock: int) -> None:
        del plan, lock

    def release(self, plan: WorkspacePlan, *, home: Path, keep_branch: bool) -> None:
        del plan, home, keep_branch

    def work(self, plan: WorkspacePlan, inside: Enclosure) -> Work:
        # The checkout stays where it is, so removal of the capsule loses nothing.
        del plan, inside
        return Work()

    def save(
        self, plan: WorkspacePlan, inside: Enclosure, *, point: str, home: Path
    ) -> RecoveryPoint | None:
        del plan, inside, point, home
        return None

    def restore(
        self, plan: WorkspacePlan, point: RecoveryPoint, inside: Enclosure, *, lock: int
    ) -> None:
        del plan, point, inside, lock

    def points(self, repository: str) -> list[RecoveryPoint]:
        del repository
        return []

    def drop(self, repository: str, point: RecoveryPoint, *, home: Path) -> None:
        del repository, point, home
