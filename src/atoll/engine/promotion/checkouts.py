"""The owner's checkouts of one repository: which branch each has, and what git is in the middle of.

Read from git's own files and machine formats; nothing here changes anything.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from atoll.host import files, git
from atoll.model.errors import StateError
from atoll.model.names import printable

_STATE_BYTES = 1 << 20
_IN_PROGRESS = {
    "MERGE_HEAD": ("merge", "git merge --abort"),
    "rebase-merge": ("rebase", "git rebase --abort"),
    "rebase-apply": ("rebase or `git am`", "git rebase --abort, or: git am --abort"),
    "CHERRY_PICK_HEAD": ("cherry-pick", "git cherry-pick --abort"),
    "REVERT_HEAD": ("revert", "git revert --abort"),
    "sequencer": ("cherry-pick or revert", "git cherry-pick --abort"),
    "BISECT_START": ("bisect", "git bisect reset"),
    "BISECT_LOG": ("bisect", "git bisect reset"),
}
"""Files in git's directory of a checkout: what they mean, and what ends it."""
_BRANCH_HOLDERS = ("rebase-merge/head-name", "rebase-apply/head-name", "BISECT_START")
"""Files that name the branch to which an operation returns."""


class WorkingTree(NamedTuple):
    """A working tree of the repository, the main one or a linked one."""

    root: str
    git_dir: str
    """Its own directory of git; empty when the working tree is missing."""
    ref: str | None
    """What its HEAD points to; None when that is a commit."""


def find_checkouts(repository: str) -> list[WorkingTree]:
    """Every checkout of the repository, the main one first."""
    found: list[WorkingTree] = []
    listed = git.git("worktree", "list", "--porcelain", "-z", cwd=repository).text
    for record in listed.split("\0\0"):
        fields = dict(field.partition(" ")[::2] for field in record.split("\0") if field)
        if "worktree" not in fields or "bare" in fields:
            continue
        root = fields["worktree"]
        found.append(WorkingTree(root, _git_dir(root), fields.get("branch")))
    return found


def _git_dir(root: str) -> str:
    if not os.path.isdir(root):
        return ""
    answer = git.git("rev-parse", "--absolute-git-dir", cwd=root, allowed=(0, 128))
    return answer.text.removesuffix("\n") if answer.code == 0 else ""


def find_checkout_of(ref: str, repository: str) -> WorkingTree | None:
    """The checkout in which a branch is checked out, or None when there is none.

    Raises StateError when the branch must not move now: it is checked out more than once or in a
    checkout that is missing, or it is being rebased or bisected.
    """
    every = find_checkouts(repository)
    for checkout in every:
        if (what := _held_by(checkout, ref)) is not None:
            raise StateError(
                f"the branch `{_short(ref)}` is in the middle of a {what[0]} at "
                f"`{printable(checkout.root)}`",
                hint=f"finish it there, or: {what[1]}",
            )
    found = [checkout for checkout in every if checkout.ref == ref]
    if len(found) > 1:
        places = ", ".join(f"`{printable(one.root)}`" for one in found)
        raise StateError(
            f"the branch `{_short(ref)}` is checked out more than once: {places}",
            hint="git switch to another branch in all of them but one",
        )
    if found and not found[0].git_dir:
        raise StateError(
            f"the branch `{_short(ref)}` is checked out at `{printable(found[0].root)}`, which "
            "does not exist",
            hint="git worktree prune, or make that directory available",
        )
    return found[0] if found else None


def _short(ref: str) -> str:
    return printable(ref.removeprefix("refs/heads/"))


def require_quiet(checkout: WorkingTree) -> None:
    """Raises StateError when git is in the middle of an operation there."""
    for name, (what, cure) in _IN_PROGRESS.items():
        if os.path.lexists(os.path.join(checkout.git_dir, name)):
            raise StateError(
                f"a {what} is in progress at `{printable(checkout.root)}`",
                hint=f"finish it there, or: {cure}",
            )


def _held_by(checkout: WorkingTree, ref: str) -> tuple[str, str] | None:
    """The operation that will come back to a branch, and what ends it."""
    if not checkout.git_dir:
        return None
    names = {ref.encode(), ref.removeprefix("refs/heads/").encode()}
    for name in _BRANCH_HOLDERS:
        content = files.read_regular(Path(checkout.git_dir, name), limit_bytes=_STATE_BYTES)
        if content is not None and content.strip() in names:
            return _IN_PROGRESS[name.partition("/")[0]]
    moved = files.read_regular(
        Path(checkout.git_dir, "rebase-merge/update-refs"), limit_bytes=_STATE_BYTES
    )
    if moved is not None and ref.encode() in moved.split(b"\n"):
        return _IN_PROGRESS["rebase-merge"]
    return None
