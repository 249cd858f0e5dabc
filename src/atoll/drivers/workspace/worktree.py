"""A real `git worktree` on its own branch, visible in `git worktree list`.

Shares the owner's repository: refs, config and objects are common. That is what the level
promises and all that it promises.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.contracts import WorkspaceRequest
from atoll.drivers.workspace import points, recovery
from atoll.drivers.workspace.branches import forget_branch
from atoll.host import files, git, programs
from atoll.model.errors import DriverError, StateError
from atoll.model.names import branch_of
from atoll.model.plan import Enclosure, WorkspacePlan
from atoll.model.state import Problem, RecoveryPoint, Work

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
        branch = _branch(plan)
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
        # The long part, outside of the turn: it touches this worktree only.
        git.git("reset", "--quiet", "--hard", cwd=plan.path, keep_fds=(lock,))

    def release(self, plan: WorkspacePlan, *, home: Path, keep_branch: bool) -> None:
        # Out of sight in one step: a crash must not leave half a tree that looks like work.
        doomed = Path(plan.path).with_name(".removing")
        files.remove_tree(doomed, within=home)
        if os.path.lexists(plan.path):
            files.move(Path(plan.path), doomed)
            files.remove_tree(doomed, within=home)
        if not Path(plan.repository).is_dir():
            return
        with git.turn(plan.repository):
            self._forget(plan, keep_branch=keep_branch)

    def _forget(self, plan: WorkspacePlan, *, keep_branch: bool) -> None:
        # The directory is gone, so git only forgets it: this never asks about its content.
        answer = git.git(
            "worktree", "remove", "--force", "--force", plan.path,
            cwd=plan.repository, allowed=(0, 128),
        )  # fmt: skip
        _remove_records(plan)
        if answer.code != 0 and b"is not a working tree" not in answer.stderr:
            raise DriverError(
                f"git could not forget the worktree: {answer.stderr.decode().strip()}"
            )
        if not keep_branch:
            forget_branch(plan.repository, _branch(plan))

    def work(self, plan: WorkspacePlan, inside: Enclosure) -> Work:
        return recovery.find_work(_LinkedSite(plan, inside))

    def save(
        self, plan: WorkspacePlan, inside: Enclosure, *, point: str, home: Path
    ) -> RecoveryPoint | None:
        return recovery.save(_LinkedSite(plan, inside), point=point, home=home)

    def restore(
        self, plan: WorkspacePlan, point: RecoveryPoint, inside: Enclosure, *, lock: int
    ) -> None:
        # On the host: this worktree is made of the owner's repository and nothing has run in it.
        del inside
        recovery.restore(plan, point, None, lock=lock)

    def points(self, repository: str) -> list[RecoveryPoint]:
        return points.points(cwd=repository)

    def drop(self, repository: str, point: RecoveryPoint, *, home: Path) -> None:
        points.drop(point, cwd=repository, home=home)


class _LinkedSite(NamedTuple):
    """A worktree: its commits are the owner's from the moment that they are made."""

    plan: WorkspacePlan
    inside: Enclosure

    def is_there(self) -> bool:
        return Path(self.plan.path).is_dir() and bool(os.listdir(self.plan.path))

    def belongs(self) -> bool:
        plan = self.plan
        answer = git.git(
            "rev-parse", "--path-format=absolute", "--git-common-dir", "--show-toplevel",
            cwd=plan.path, within=self.inside, allowed=(0, 128),
        )  # fmt: skip
        expected = f"{os.path.realpath(plan.repository)}\n{os.path.realpath(plan.path)}\n"
        return answer.code == 0 and answer.text == expected

    def tips(self) -> list[str]:
        head = tip = None
        if Path(self.plan.path).is_dir() and self.belongs():
            head = git.find_commit("HEAD", cwd=self.plan.path, within=self.inside)
        if self.plan.branch is not None:
            tip = git.find_ref(f"refs/heads/{self.plan.branch}", cwd=self.plan.repository)
        return [commit for commit in (head, tip) if commit is not None]

    def is_sound(self) -> bool:
        """What it has is the owner's, who would know."""
        return True

    def lost_submodules(self) -> list[str]:
        # Git itself shows them as changed: a worktree has submodules of its own.
        return []

    def deliver(self, commits: Sequence[str]) -> None:
        del commits

    def set_aside(self, aside: Path) -> None:
        """Moves the files, with the repositories of this worktree's submodules."""
        pointer = Path(self.plan.path, ".git")
        plain = pointer.is_file() and not pointer.is_symlink()
        link = files.read_regular(pointer, limit_bytes=1 << 16) if plain else None
        record = Path(os.fsdecode((link or b"").removeprefix(b"gitdir: ").rstrip(b"\n")))
        linked = record.parent == Path(self.plan.repository, "worktrees")
        if linked and (record / "modules").is_dir():
            files.move(record / "modules", aside / "modules")
        files.move(Path(self.plan.path), aside / "workspace")


def _branch(plan: WorkspacePlan) -> str:
    if plan.branch is None:
        raise ValueError("a worktree needs a branch")
    return plan.branch


def _remove_records(plan: WorkspacePlan) -> None:
    """Removes what a killed `git worktree add` or `remove` left of its record.

    Git keeps a record that does not name its directory for ever. Called within our turn, so
    nobody else's worktree of this name is being made.
    """
    records = Path(plan.repository, "worktrees")
    if not records.is_dir():
        return
    mine = (b"", os.fsencode(f"{plan.path}/.git"))
    for record in records.iterdir():
        if not re.fullmatch(re.escape(Path(plan.path).name) + r"\d*", record.name):
            continue
        named = files.read_regular(record / "gitdir", limit_bytes=1 << 16) or b""
        if named.rstrip(b"\n") in mine:
            files.remove_tree(record, within=records)
