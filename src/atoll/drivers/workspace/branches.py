"""The branch `atoll/NAME` in the owner's repository: what a capsule's work is known by there."""

from __future__ import annotations

from pathlib import Path

from atoll.host import git


def forget_branch(repository: str, branch: str) -> None:
    """Deletes the branch, unless the owner has checked it out; fine when there is none."""
    if git.checked_out_at(branch, cwd=repository) is not None:
        return
    git.remove_stale_lock(Path(repository, f"refs/heads/{branch}.lock"))
    if git.find_ref(f"refs/heads/{branch}", cwd=repository) is not None:
        git.git("branch", "--quiet", "-D", "--", branch, cwd=repository)
