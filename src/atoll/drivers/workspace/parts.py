"""What commits refer to without holding it: Git LFS objects, and commits of submodules.

They come out with the commits, each into the store of the owner's where git looks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.workspace.module_commits import Modules, Unresolved, bring_modules
from atoll.drivers.workspace.survey import Workspace
from atoll.host.intake.large import LargeBudget, LargeFiles, WrongObjects, bring_large_files
from atoll.host.intake.store import Store
from atoll.model.errors import StateError
from atoll.model.plan import WorkspacePlan

_WRONG_OBJECTS = "wrong-lfs-objects.json"


class Parts(NamedTuple):
    large: LargeFiles = LargeFiles()
    modules: Modules = Modules()

    def notes(self) -> tuple[str, ...]:
        """What the owner has to know, for warnings."""
        unused = [_sentence(it) for it in self.modules.unresolved if not it.is_used]
        return (*self.large.notes(), *self.modules.large.notes(), *unused)

    def require_whole(self) -> None:
        """Raises StateError when a commit of a submodule is missing that the owner would need."""
        for it in self.modules.unresolved:
            if it.is_used:
                path = it.path.shown()
                raise StateError(
                    _sentence(it),
                    hint=it.hint
                    or f"git submodule update --init {path} and git -C {path} fetch, or inside "
                    f"the capsule: git submodule update {path}; then export again",
                )

    @property
    def refused(self) -> tuple[str, ...]:
        """Git LFS objects that are in the capsule's files only."""
        return (*self.large.refused, *self.modules.large.refused)


def _sentence(it: Unresolved) -> str:
    return f"the submodule `{it.path.shown()}` is recorded at {it.commit[:10]}: {it.why}"


def bring_parts(
    plan: WorkspacePlan, workspace: Workspace, store: Store, tips: Sequence[str], *, scratch: Path
) -> Parts:
    """Brings out what commits refer to that the base commit does not.

    Not what an earlier export brought: that may have been an earlier version's, which left LFS
    objects and submodules behind.
    """
    fresh = [tip for tip in dict.fromkeys(tips) if tip != plan.base_commit]
    # Of all capsules of the project, and as long as it has any base.
    budget = LargeBudget(plan.disk_bytes, wrong=WrongObjects(scratch / _WRONG_OBJECTS))
    known = [plan.base_commit]
    return Parts(
        bring_large_files(store, workspace.tree, fresh, known=known, budget=budget),
        bring_modules(plan, workspace.tree, store, fresh, scratch=scratch, budget=budget),
    )
