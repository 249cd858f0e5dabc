"""The owner's checkout as the workspace of level `none`. Creates and removes nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

from atoll.drivers.contracts import WorkspaceRequest
from atoll.drivers.workspace import changes
from atoll.drivers.workspace.shared_repository import LinkedSite
from atoll.model.plan import WorkspacePlan
from atoll.model.state import Patch, Problem, RecoveryPoint, Work
from atoll.model.untrusted import InsidePath


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

    def work(self, plan: WorkspacePlan) -> Work:
        # The checkout stays, so removing the capsule loses nothing.
        del plan
        return Work()

    def save(
        self, plan: WorkspacePlan, *, point: str, base: str, home: Path
    ) -> RecoveryPoint | None:
        del plan, point, base, home
        return None

    def restore(
        self, plan: WorkspacePlan, point: RecoveryPoint, *, lock: int
    ) -> tuple[InsidePath, ...]:
        del plan, point, lock
        return ()

    def diff(self, plan: WorkspacePlan, *, base: str, stat: bool) -> Patch:
        site = LinkedSite(plan, Path(tempfile.gettempdir()))
        return changes.diff(site, base=base, stat=stat)
