"""What commits refer to without holding it: Git LFS objects, and commits of submodules.

They come out with the commits, each into the store of the owner's where git looks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from atoll.drivers.workspace.survey import Workspace
from atoll.host.intake.large import LargeFiles, bring_large_files
from atoll.host.intake.store import Store
from atoll.model.plan import WorkspacePlan


class Parts(NamedTuple):
    large: LargeFiles = LargeFiles()

    def notes(self) -> tuple[str, ...]:
        """What the owner has to know, for warnings."""
        return self.large.notes()


def bring_parts(
    plan: WorkspacePlan, workspace: Workspace, store: Store, tips: Sequence[str]
) -> Parts:
    """Brings out what commits refer to that the base commit does not.

    Not what an earlier export brought: that may have been an earlier version's, which left LFS
    objects and submodules behind.
    """
    fresh = [tip for tip in dict.fromkeys(tips) if tip != plan.base_commit]
    known = [plan.base_commit]
    return Parts(large=bring_large_files(store, workspace.tree, fresh, known=known))
