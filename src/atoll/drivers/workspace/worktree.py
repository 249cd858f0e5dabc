"""A real `git worktree` on its own branch, visible in `git worktree list`.

Shares the owner's repository: refs, config and objects are common. That is what the level
promises and all that it promises.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from atoll.drivers.contracts import WorkspaceRequest
from atoll.drivers.workspace import recovery
from atoll.host import files, git
from atoll.model.errors import DriverError, StateError
from atoll.model.names import branch_of
from atoll.model.plan import Enclosure, WorkspacePlan
from atoll.model.state import Problem, RecoveryPoint, Work

_OLDEST_GIT = (2, 36, 0)


class WorktreeWorkspace:
    name = "worktree"

    def check(self) -> list[Problem]:
        if shutil.which("git") is None:
            return [Problem(what="git is not installed", cure="apt-get install git")]
        if git.version() < _OLDEST_GIT:
            return [Problem(what="git is older than 2.36", cure="apt-get install git")]
        return []

    def plan(self, request: WorkspaceRequest) -> WorkspacePlan:
        return request.planned(self.name, path=request.path, branch=branch_of(request.name))

    def apply(self, plan: WorkspacePlan, *, lock: int) -> None:
        branch = _branch(plan)
        if os.path.lexists(plan.path):
            raise StateError(f"`{plan.path}` exists already", hint="atoll gc")
        if not git.create_ref(
            f"refs/heads/{branch}", plan.base_commit, cwd=plan.repository, keep_fds=(lock,)
        ):
            raise StateError(
                f"the branch `{branch}` exists already",
                hint=f"git branch -m {branch} {branch}-old",
            )
        files.make_private_directory(Path(plan.path).parent)
        git.git(
            "worktree", "add", "--quiet", plan.path, branch, cwd=plan.repository, keep_fds=(lock,)
        )

    def release(self, plan: WorkspacePlan, *, home: Path, keep_branch: bool) -> None:
        # Out of sight in one step: a crash must not leave half a tree that looks like work.
        doomed = Path(plan.path).with_name(".removing")
        files.remove_tree(doomed, within=home)
        if os.path.lexists(plan.path):
            files.move(Path(plan.path), doomed)
            files.remove_tree(doomed, within=home)
        if not Path(plan.repository).is_dir():
            return
        # The directory is gone, so git only forgets it: this never asks about its content.
        answer = git.git(
            "worktree", "remove", "--force", "--force", plan.path,
            cwd=plan.repository, allowed=(0, 128),
        )  # fmt: skip
        if answer.code != 0 and b"is not a working tree" not in answer.stderr:
            raise DriverError(
                f"git could not forget the worktree: {answer.stderr.decode().strip()}"
            )
        _remove_stillborn(plan)
        branch = _branch(plan)
        if keep_branch or git.checked_out_at(branch, cwd=plan.repository) is not None:
            return
        if git.find_ref(f"refs/heads/{branch}", cwd=plan.repository) is not None:
            git.git("branch", "--quiet", "-D", "--", branch, cwd=plan.repository)

    def work(self, plan: WorkspacePlan, inside: Enclosure) -> Work:
        return recovery.find_work(plan, inside)

    def save(
        self, plan: WorkspacePlan, inside: Enclosure, *, point: str, home: Path
    ) -> RecoveryPoint | None:
        return recovery.save(plan, inside, point=point, home=home)

    def restore(self, plan: WorkspacePlan, point: RecoveryPoint, *, lock: int) -> None:
        recovery.restore(plan, point, lock=lock)

    def points(self, repository: str) -> list[RecoveryPoint]:
        return recovery.points(cwd=repository)

    def drop(self, repository: str, point: RecoveryPoint, *, home: Path) -> None:
        recovery.drop(point, cwd=repository, home=home)


def _branch(plan: WorkspacePlan) -> str:
    if plan.branch is None:
        raise ValueError("a worktree needs a branch")
    return plan.branch


def _remove_stillborn(plan: WorkspacePlan) -> None:
    """Removes the record of a `git worktree add` that was killed before it named its directory.

    Git itself keeps such a record for ever, because it is marked as being initialised.
    """
    name = Path(plan.path).name
    records = Path(plan.repository, "worktrees")
    if not records.is_dir():
        return
    for record in records.iterdir():
        if (
            re.fullmatch(re.escape(name) + r"\d*", record.name)
            and (record / "locked").exists()
            and not (record / "gitdir").exists()
        ):
            files.remove_tree(record, within=records)
