"""Submodules whose recorded commits only the capsule has."""

from __future__ import annotations

import os
from pathlib import Path

from atoll.drivers.workspace.owner_modules import find_module, find_place, has_objects, is_kept
from atoll.drivers.workspace.survey import GITLINK
from atoll.host import git
from atoll.host.beneath import TreeReader
from atoll.host.intake import comparison
from atoll.host.intake.content import blob_id
from atoll.host.intake.refs import load_refs
from atoll.host.intake.store import Store
from atoll.host.merged import MergedTree, PlainTree
from atoll.model.plan import WorkspacePlan
from atoll.model.untrusted import InsidePath, ObjectId, as_content

_FILE_BYTES = 1 << 28
_SHA1 = 40


def find_lost_submodules(
    plan: WorkspacePlan, tree: TreeReader, store: Store, head: str
) -> list[InsidePath]:
    """Submodules that `head` records at a commit which the owner's copies of them do not have."""
    moved = comparison.difference(store, plan.base_commit, head)
    return [
        path
        for path, (_, after) in moved.items()
        if after is not None
        and after.mode == GITLINK
        and not owner_has(plan, tree, path, after.object_id)
    ]


def is_changed(
    plan: WorkspacePlan,
    tree: MergedTree,
    module: InsidePath,
    commit: ObjectId,
    *,
    modules: Path | None,
) -> bool:
    """Whether a submodule holds anything but the files of its recorded commit, or refs to commits
    that the owner's own copy of it does not have. `modules` is where its repository is kept.
    """
    owner = find_module(plan, module)
    if owner is None or modules is None or not modules.is_dir():
        return True
    with PlainTree(modules) as kept:
        name = os.path.relpath(owner, os.path.join(os.path.realpath(plan.repository), "modules"))
        refs = load_refs(kept, InsidePath(os.fsencode(name)))
    if refs is None or refs.head != commit or refs.refused:
        return True
    tips = {*refs.refs.values(), *refs.fetched.values(), *refs.stashes, *refs.worktrees, commit}
    if not has_objects(owner, tips):
        return True
    listed = git.git(
        "ls-tree", "-r", "-z", "--full-tree", commit, cwd=owner, env={"GIT_DIR": owner}
    )
    expected = {}
    for line in listed.stdout.split(b"\0")[:-1]:
        head, _, raw = line.partition(b"\t")
        expected[module.raw + b"/" + raw] = head.split(b" ")[-1].decode()
    return _blobs(tree, module, "sha1" if len(commit) == _SHA1 else "sha256") != expected


def _blobs(tree: MergedTree, module: InsidePath, algorithm: str) -> dict[bytes, str | None]:
    """All files below a directory with the ids of their contents as they are."""

    def skip(path: InsidePath, is_directory: bool) -> bool:  # noqa: FBT001 - called so
        del is_directory
        inside = path.is_below(module) or module.is_below(path)
        return not inside or path.name == b".git"

    changes = tree.changes(skip=skip)
    found: dict[bytes, str | None] = {
        path.raw: None for path in (*changes.closed, *changes.special) if path.is_below(module)
    }
    for path, entry in changes.entries.items():
        if path.is_below(module):
            target = entry.target
            content = (
                tree.read(path, limit_bytes=_FILE_BYTES) if target is None else as_content(target)
            )
            found[path.raw] = None if content is None else blob_id(content, algorithm)
    return found


def owner_has(plan: WorkspacePlan, tree: TreeReader, path: InsidePath, commit: str) -> bool:
    """Whether the owner's own repository of a submodule has a commit, and a ref keeps it."""
    owner = find_place(plan, tree, path).owner
    return owner is not None and is_kept(owner, commit)
