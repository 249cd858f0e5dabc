"""Submodules whose recorded commits only the capsule has."""

from __future__ import annotations

import os
from pathlib import Path

from atoll.drivers.workspace.survey import GITLINK
from atoll.host import git
from atoll.host.intake import comparison
from atoll.host.intake.store import Store
from atoll.host.merged import PlainTree
from atoll.model.plan import WorkspacePlan
from atoll.model.untrusted import InsidePath

_POINTER_BYTES = 1 << 16


def find_lost_submodules(plan: WorkspacePlan, store: Store, head: str) -> list[InsidePath]:
    """Submodules that `head` records at a commit which the owner's copies of them do not have."""
    moved = comparison.difference(store, plan.base_commit, head)
    with PlainTree(Path(plan.checkout)) as checkout:
        return [
            path
            for path, (before, after) in moved.items()
            if after is not None
            and after.mode == GITLINK
            and not (
                before is not None
                and before.mode == GITLINK
                and _owner_has(plan, checkout, path, after.object_id)
            )
        ]


def _owner_has(plan: WorkspacePlan, checkout: PlainTree, path: InsidePath, commit: str) -> bool:
    """Whether the owner's own submodule at a path that the base records has a commit.

    Its git directory is found by the owner's files, without following a link, and has to be one
    below the owner's repository.
    """
    pointer = checkout.read(path.child(b".git"), limit_bytes=_POINTER_BYTES)
    if pointer is None or not pointer.startswith(b"gitdir: "):
        return False
    named = os.fsdecode(pointer.removeprefix(b"gitdir: ").rstrip(b"\n"))
    place = os.path.realpath(os.path.join(plan.checkout, os.fsdecode(path.raw), named))
    if not place.startswith(os.path.realpath(plan.repository) + "/modules/"):
        return False
    answer = git.git(
        "cat-file", "-e", f"{commit}^{{commit}}", cwd=place, env={"GIT_DIR": place},
        allowed=(0, 1, 128),
    )  # fmt: skip
    return answer.code == 0
