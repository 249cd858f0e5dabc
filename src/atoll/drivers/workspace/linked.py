"""A workspace that shares the owner's repository: a worktree, or the checkout itself.

Its commits are the owner's from the moment that they are made. Where HEAD stands is read from the
repository's own record of the worktree; no git runs in the workspace.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from atoll.drivers.workspace import gitlinks
from atoll.drivers.workspace.examination import Taken, branch_commits
from atoll.drivers.workspace.module_state import ModuleState
from atoll.drivers.workspace.parts import Parts
from atoll.drivers.workspace.survey import Workspace
from atoll.host import files, git
from atoll.host.intake.index import Staged, parse_index
from atoll.host.intake.store import Store, open_store
from atoll.host.merged import MergedTree
from atoll.model.plan import WorkspacePlan
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, find_object_id, find_ref_name

_POINTER_BYTES = 1 << 16
_INDEX_BYTES = 256 << 20


class LinkedSite:
    def __init__(self, plan: WorkspacePlan, scratch: Path) -> None:
        self.plan = plan
        self.scratch = scratch
        self._committed: list[str] | None = None

    def is_there(self) -> bool:
        return Path(self.plan.path).is_dir() and bool(os.listdir(self.plan.path))

    @contextmanager
    def opened(self) -> Iterator[tuple[Workspace, Store]]:
        place = Path(self.plan.path)
        with (
            MergedTree([place.parent], own=1, namespace="user", at=place.name) as tree,
            open_store(self.plan.repository, scratch=self.scratch) as store,
        ):
            yield Workspace(tree, None, is_whole=True), store

    def take(self, workspace: Workspace, *, everything: bool) -> Taken | None:
        del workspace, everything
        record = self._record()
        if record is None:
            return None
        head, ref = self._head(record)
        tips = [commit for commit in (head, *self.committed()) if commit is not None]
        return Taken(
            head=head,
            head_ref=ref,
            branch=self._branch(),
            tips=tuple(ObjectId(tip) for tip in dict.fromkeys(tips)),
        )

    def bring_parts(self, workspace: Workspace, store: Store, tips: Sequence[str]) -> Parts:
        # Its git keeps LFS objects in the owner's repository.
        del workspace, store, tips
        return Parts()

    def staged(self, workspace: Workspace) -> tuple[Staged, ...] | None:
        del workspace
        record = self._record()
        content = record and files.read_beneath(record, "index", limit_bytes=_INDEX_BYTES)
        if not content:
            return None
        found = parse_index(content, id_bytes=len(self.plan.base_commit) // 2)
        return None if found is None else tuple(found)

    def _record(self) -> Path | None:
        """The git directory of this worktree; None when its link was changed."""
        repository = os.path.realpath(self.plan.repository)
        pointer = files.read_beneath(Path(self.plan.path), ".git", limit_bytes=_POINTER_BYTES)
        if pointer is None:
            own = os.path.join(self.plan.path, ".git")
            is_own = os.path.isdir(own) and os.path.realpath(own) == repository
            return Path(repository) if is_own else None
        named = Path(os.fsdecode(pointer.removeprefix(b"gitdir: ").rstrip(b"\n")))
        if os.path.realpath(named.parent) != f"{repository}/worktrees" or named.name in ("", ".."):
            return None
        record = Path(repository, "worktrees", named.name)
        if not record.is_dir():
            return None
        back = files.read_beneath(record, "gitdir", limit_bytes=_POINTER_BYTES) or b""
        is_ours = os.fsdecode(back.rstrip(b"\n")) == f"{self.plan.path}/.git"
        return record if is_ours else None

    def _head(self, record: Path) -> tuple[ObjectId | None, str | None]:
        content = files.read_beneath(record, "HEAD", limit_bytes=_POINTER_BYTES) or b""
        said = content.rstrip(b"\n")
        if not said.startswith(b"ref: "):
            return find_object_id(Untrusted(said)), None
        ref = find_ref_name(Untrusted(said.removeprefix(b"ref: ").strip()))
        if ref is None:
            return None, None
        is_own = ref == f"refs/heads/{self.plan.branch}"
        found = (
            next(iter(self.committed()), None)
            if is_own
            else git.find_ref(ref, cwd=self.plan.repository)
        )
        return (None if found is None else ObjectId(found)), ref

    def _branch(self) -> ObjectId | None:
        found = self.committed()
        return ObjectId(found[0]) if found else None

    def visible(self, names: Collection[ObjectId]) -> set[ObjectId]:
        # It shares the owner's repository.
        return set(names)

    def committed(self) -> list[str]:
        if self._committed is None:
            self._committed = branch_commits(self.plan)
        return self._committed

    def is_changed_module(
        self, workspace: Workspace, path: InsidePath, commit: ObjectId, before: ObjectId | None
    ) -> bool:
        del before
        record = self._record()
        modules = None if record is None else record / "modules"
        return gitlinks.is_changed(self.plan, workspace.tree, path, commit, modules=modules)

    def owner_check(self, workspace: Workspace) -> ModuleState:
        return ModuleState(self.plan, workspace, self.scratch)

    def lost_submodules(self, workspace: Workspace, store: Store, head: str) -> list[InsidePath]:
        # A worktree has copies of its submodules: those that changed are nested repositories.
        del workspace, store, head
        return []

    def set_aside(self, aside: Path) -> None:
        """Moves the files, with the repositories of this worktree's submodules."""
        record = self._record()
        if record is not None and record.parent.name == "worktrees" and _has_modules(record):
            files.move(record / "modules", aside / "modules")
        if os.path.lexists(self.plan.path):
            files.move(Path(self.plan.path), aside / "workspace")


def _has_modules(record: Path) -> bool:
    return (record / "modules").is_dir() and not (record / "modules").is_symlink()
