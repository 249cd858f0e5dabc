"""The branch `atoll/NAME` in the owner's repository: what a capsule's work is known by there."""

from __future__ import annotations

from pathlib import Path

from atoll.host import git
from atoll.host.process import wait_until

_STALE_S = 2.0


def forget_branch(repository: str, branch: str) -> None:
    """Deletes the branch, unless the owner has checked it out; fine when there is none."""
    if git.checked_out_at(branch, cwd=repository) is not None:
        return
    remove_stale_lock(Path(repository, f"refs/heads/{branch}.lock"))
    if git.find_ref(f"refs/heads/{branch}", cwd=repository) is not None:
        git.git("branch", "--quiet", "-D", "--", branch, cwd=repository)


def remove_stale_lock(path: Path) -> None:
    """Git holds a ref's lock for an instant; one that stays is a killed git's."""
    if path.exists() and not wait_until(lambda: not path.exists(), timeout_s=_STALE_S):
        path.unlink(missing_ok=True)
