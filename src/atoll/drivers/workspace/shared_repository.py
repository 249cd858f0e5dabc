"""A workspace that shares the owner's repository: a worktree, or the checkout itself.

Its commits are in the owner's repository as soon as they are made. HEAD is read from the
repository's record of the worktree; no git runs in the workspace.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from atoll.drivers.workspace import submodule_state
from atoll.drivers.workspace.file_status import WorkspaceFiles
from atoll.drivers.workspace.referenced_objects import Parts
from atoll.drivers.workspace.submodule_state import ModuleState
from atoll.drivers.workspace.unique_work import ImportedRefs, branch_commits
from atoll.host import files, git
from atoll.host.intake.index import IndexEntry, parse_index
from atoll.host.intake.store import IntakeRepository, open_store
from atoll.host.tree.merged_tree import MergedTree
from atoll.model.plan import WorkspacePlan
from atoll.model.secretvalues import SecretSearch
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, find_object_id, find_ref_name

_POINTER_BYTES = 1 << 16
_INDEX_BYTES = 256 << 20


class LinkedSite:
    search: SecretSearch | None = None
    """What is committed there is in the owner's repository already."""

    def __init__(self, plan: WorkspacePlan, scratch: Path) -> None:
        self.plan = plan
        self.scratch = scratch

    def is_there(self) -> bool:
        return Path(self.plan.path).is_dir() and bool(os.listdir(self.plan.path))

    @contextmanager
    def opened(self) -> Iterator[tuple[WorkspaceFiles, IntakeRepository]]:
        place = Path(self.plan.path)
        with (
            MergedTree([place.parent], own=1, namespace="user", at=place.name) as tree,
            open_store(self.plan.repository, scratch=self.scratch) as store,
        ):
            yield WorkspaceFiles(tree, None, is_whole=True), store

    def take(self, workspace: WorkspaceFiles, *, everything: bool) -> ImportedRefs | None:
        del workspace, everything
        record = self._record()
        if record is None:
            return None
        head, ref = self._head(record)
        tips = [commit for commit in (head, *self.committed) if commit is not None]
        return ImportedRefs(
            head=head,
            head_ref=ref,
            branch=self._branch(),
            tips=tuple(ObjectId(tip) for tip in dict.fromkeys(tips)),
        )

    def export_parts(
        self, workspace: WorkspaceFiles, store: IntakeRepository, tips: Sequence[str]
    ) -> Parts:
        # LFS objects are in the owner's repository already.
        del workspace, store, tips
        return Parts()

    def staged(self, workspace: WorkspaceFiles) -> tuple[IndexEntry, ...] | None:
        del workspace
        record = self._record()
        content = record and files.read_beneath(record, "index", limit_bytes=_INDEX_BYTES)
        if not content:
            return None
        found = parse_index(content, id_bytes=len(self.plan.base_commit) // 2)
        return None if found is None else tuple(found)

    def _record(self) -> Path | None:
        """The git directory of this worktree; None if its link was changed."""
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
        value = content.rstrip(b"\n")
        if not value.startswith(b"ref: "):
            return find_object_id(Untrusted(value)), None
        ref = find_ref_name(Untrusted(value.removeprefix(b"ref: ").strip()))
        if ref is None:
            return None, None
        is_own = ref == f"refs/heads/{self.plan.branch}"
        found = (
            next(iter(self.committed), None)
            if is_own
            else git.find_ref(ref, cwd=self.plan.repository)
        )
        return (None if found is None else ObjectId(found)), ref

    def _branch(self) -> ObjectId | None:
        found = self.committed
        return ObjectId(found[0]) if found else None

    def visible(self, names: Collection[ObjectId]) -> set[ObjectId]:
        # It shares the owner's repository.
        return set(names)

    @cached_property
    def committed(self) -> list[str]:
        return branch_commits(self.plan)

    def is_changed_module(
        self, workspace: WorkspaceFiles, path: InsidePath, commit: ObjectId, before: ObjectId | None
    ) -> bool:
        del before
        record = self._record()
        modules = None if record is None else record / "modules"
        return submodule_state.is_changed(self.plan, workspace.tree, path, commit, modules=modules)

    def owner_check(self, workspace: WorkspaceFiles) -> ModuleState:
        return ModuleState(self.plan, workspace, self.scratch)

    def lost_submodules(
        self, workspace: WorkspaceFiles, store: IntakeRepository, head: str
    ) -> list[InsidePath]:
        # A worktree has its own copies of submodules: changed ones are nested repositories.
        del workspace, store, head
        return []

    def set_aside(self, aside: Path) -> None:
        """Moves the files, with the submodule repositories of this worktree."""
        record = self._record()
        if record is not None and record.parent.name == "worktrees" and _has_modules(record):
            files.move(record / "modules", aside / "modules")
        if os.path.lexists(self.plan.path):
            files.move(Path(self.plan.path), aside / "workspace")


def _has_modules(record: Path) -> bool:
    return (record / "modules").is_dir() and not (record / "modules").is_symlink()
