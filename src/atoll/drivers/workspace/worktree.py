"""A real `git worktree` on its own branch, visible in `git worktree list`.

It shares the owner's repository: refs, config and objects are common. The level promises nothing
more.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from atoll.drivers.contracts import WorkspaceRequest
from atoll.drivers.layers import lfs, stand_in_repositories
from atoll.drivers.layers.pool import WORKSPACE
from atoll.drivers.workspace import changes, recovery_save, unique_work
from atoll.drivers.workspace.branches import delete_branch, require_branch
from atoll.drivers.workspace.shared_repository import LinkedSite
from atoll.host import files, git, programs
from atoll.host.recovery.recovery_points import recovered_tree
from atoll.model.errors import DriverError, StateError
from atoll.model.names import branch_of
from atoll.model.plan import WorkspacePlan
from atoll.model.state import WHOLE, Patch, Problem, RecoveryPoint, Work
from atoll.model.untrusted import InsidePath

_OLDEST_GIT = (2, 36, 0)


class WorktreeWorkspace:
    name = "worktree"

    def check(self, home: Path) -> list[Problem]:
        del home
        if programs.find_program("git") is None:
            return [Problem(what="git is not installed", cure="apt-get install git")]
        if git.version() < _OLDEST_GIT:
            return [Problem(what="git is older than 2.36", cure="apt-get install git")]
        return []

    def plan(self, request: WorkspaceRequest) -> WorkspacePlan:
        return request.planned(self.name, path=request.path, branch=branch_of(request.name))

    def apply(self, plan: WorkspacePlan, *, lock: int) -> None:
        branch = require_branch(plan)
        if os.path.lexists(plan.path):
            raise StateError(f"`{plan.path}` exists already", hint="atoll gc")
        files.make_private_directory(Path(plan.path).parent)
        with git.turn(plan.repository) as turn:
            held = (lock, turn)
            ref = f"refs/heads/{branch}"
            if not git.create_ref(ref, plan.base_commit, cwd=plan.repository, keep_fds=held):
                raise StateError(
                    f"the branch `{branch}` exists already",
                    hint=f"git branch -m {branch} {branch}-old",
                )
            git.git(
                "worktree", "add", "--quiet", "--no-checkout", plan.path, branch,
                cwd=plan.repository, keep_fds=held,
            )  # fmt: skip
        # The long part, without the lock: it affects this worktree only.
        options = lfs.build_options(plan.repository, (lock,))
        git.git(*options, "reset", "--quiet", "--hard", cwd=plan.path, keep_fds=(lock,))

    def release(self, plan: WorkspacePlan, *, home: Path, keep_branch: bool) -> None:
        # Renamed in one step: a crash must not leave half a tree that looks like work.
        doomed = Path(plan.path).with_name(".removing")
        files.remove_tree(doomed, within=home)
        if os.path.lexists(plan.path):
            files.move(Path(plan.path), doomed)
            files.remove_tree(doomed, within=home)
        if not _has_repository(plan):
            return
        with git.turn(plan.repository):
            self._forget(plan, keep_branch=keep_branch)

    def _forget(self, plan: WorkspacePlan, *, keep_branch: bool) -> None:
        # The directory is gone, so git only removes its record, without checking the content.
        answer = git.git(
            "worktree", "remove", "--force", "--force", plan.path,
            cwd=plan.repository, allowed=(0, 128),
        )  # fmt: skip
        _remove_records(plan)
        if answer.code != 0 and b"is not a working tree" not in answer.stderr:
            raise DriverError(
                f"cannot remove the worktree's record: {answer.stderr.decode().strip()}"
            )
        if not keep_branch:
            delete_branch(plan.repository, require_branch(plan))

    def work(self, plan: WorkspacePlan) -> Work:
        if not _has_repository(plan):
            return Work(nested=WHOLE) if _site(plan).is_there() else Work()
        return unique_work.find_work(_site(plan))

    def save(
        self, plan: WorkspacePlan, *, point: str, base: str, home: Path
    ) -> RecoveryPoint | None:
        if _has_repository(plan):
            return recovery_save.save(_site(plan), point=point, base=base, home=home)
        # Its commits were lost with the shared repository.
        stored = stand_in_repositories.stored_in(plan, home)
        made = recovery_save.save_files(_site(stored), point=point, home=home)
        return made if made is None else made._replace(repository=stored.repository)

    def restore(
        self, plan: WorkspacePlan, point: RecoveryPoint, *, lock: int
    ) -> tuple[InsidePath, ...]:
        """Restores files and index; the branch is set to the HEAD of that time."""
        from atoll.host.recovery import restored_files  # noqa: PLC0415 - copies: rarely needed

        start = recovered_tree(point)
        options = lfs.build_options(plan.repository, (lock,))
        git.git(*options, "read-tree", "-u", "--reset", start, cwd=plan.path, keep_fds=(lock,))
        if point.files is not None:
            restored_files.put_back(Path(point.files), Path(plan.path), at=WORKSPACE)
        left_out = restored_files.remove_bare_heads(Path(plan.path))
        now = point.index_commit or point.head_commit
        git.git(*options, "read-tree", now, cwd=plan.path, keep_fds=(lock,))
        return left_out

    def diff(self, plan: WorkspacePlan, *, base: str, stat: bool) -> Patch:
        return changes.diff(_site(plan), base=base, stat=stat)


def _site(plan: WorkspacePlan) -> LinkedSite:
    return LinkedSite(plan, Path(plan.path).parents[1])


def _has_repository(plan: WorkspacePlan) -> bool:
    """As `stand_in_repositories.has_repository`; a record of the worktree mostly answers it."""
    own = os.fsencode(f"{plan.path}/.git")
    return any(named == own for _, named in _records(plan)) or (
        stand_in_repositories.has_repository(plan)
    )


def _remove_records(plan: WorkspacePlan) -> None:
    """Removes the incomplete record of a killed `git worktree add` or `remove`.

    Git keeps a record without a directory forever. The caller holds the lock, so no other worktree
    of this name is being created.
    """
    mine = (b"", os.fsencode(f"{plan.path}/.git"))
    for record, named in _records(plan):
        if named in mine:
            files.remove_tree(record, within=record.parent)


def _records(plan: WorkspacePlan) -> list[tuple[Path, bytes]]:
    """The repository's records of worktrees with this name, and the `.git` that each one names."""
    records = Path(plan.repository, "worktrees")
    if not records.is_dir():
        return []
    own = re.compile(re.escape(Path(plan.path).name) + r"\d*")
    return [
        (one, (files.read_regular(one / "gitdir", limit_bytes=1 << 16) or b"").rstrip(b"\n"))
        for one in records.iterdir()
        if own.fullmatch(one.name)
    ]
