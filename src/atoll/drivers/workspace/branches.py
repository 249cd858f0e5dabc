"""The branch `atoll/NAME` in the owner's repository, which holds a capsule's exported work."""

from __future__ import annotations

from pathlib import Path

from atoll.host import files, git, ref_files
from atoll.model.errors import DriverError
from atoll.model.plan import WorkspacePlan


def require_branch(plan: WorkspacePlan) -> str:
    if plan.branch is None:
        raise ValueError("this workspace needs a branch")
    return plan.branch


def delete_branch(repository: str, branch: str) -> None:
    """Deletes the branch if it exists, unless it is checked out or moved in the meantime."""
    ref = f"refs/heads/{branch}"
    git.remove_stale_lock(Path(repository, f"{ref}.lock"))
    tip = git.find_ref(ref, cwd=repository)
    if tip is None or _is_checked_out(repository, branch):
        return
    if _has_settings(repository, branch):
        git.git("branch", "--quiet", "-D", "--", branch, cwd=repository, alone=True)
        return
    # `git branch` would rewrite the owner's config without syncing it.
    try:
        git.delete_ref(ref, cwd=repository, old=tip)
    except DriverError:
        if git.find_ref(ref, cwd=repository) == tip:
            raise


def _is_checked_out(repository: str, branch: str) -> bool:
    try:
        return ref_files.is_checked_out(repository, f"refs/heads/{branch}")
    except ref_files.UnusualError:
        return git.checked_out_at(branch, cwd=repository) is not None


def _has_settings(repository: str, branch: str) -> bool:
    content = files.read_regular(Path(repository, "config"), limit_bytes=1 << 24) or b""
    return f'[branch "{branch}"]'.encode() in content
