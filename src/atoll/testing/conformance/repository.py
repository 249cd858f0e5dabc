"""What a workspace driver on git must do besides: branches, commits, the index, nested work."""
# ruff: noqa: S101 - a test method says what must hold with `assert`

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.host import files, git, programs
from atoll.host.recovery import recovery_points
from atoll.model.errors import StateError
from atoll.model.state import RecoveryPoint
from atoll.testing.conformance.witness import held_lock, look, refused
from atoll.testing.conformance.workspace import (
    IDENTITY,
    PrivateWorkspaceSuite,
    WorkspaceTrial,
    write_files,
)

if TYPE_CHECKING:
    from pytest import MonkeyPatch  # noqa: PT013 - the type alone, for those who have pytest

_SPY = """#!/bin/sh
for fd in /proc/$$/fd/*; do readlink "$fd"; done > {seen}/$$
exec {real} "$@"
"""


def branches(trial: WorkspaceTrial) -> dict[str, str]:
    return dict(git.refs_below("refs/heads/", cwd=trial.plan.repository))


def commit_all(trial: WorkspaceTrial, message: str = "work") -> str:
    git.git("add", "--all", cwd=trial.plan.path)
    git.git("commit", "--quiet", "-m", message, cwd=trial.plan.path, env=IDENTITY)
    return str(git.find_commit("HEAD", cwd=trial.plan.path))


def worktrees(trial: WorkspaceTrial) -> list[str]:
    listing = git.git("worktree", "list", "--porcelain", "-z", cwd=trial.plan.repository).text
    words = [field.partition(" ") for field in listing.split("\0")]
    return [value for key, _, value in words if key == "worktree"]


class GitWorkspaceSuite(PrivateWorkspaceSuite):
    """For drivers whose workspace is a checkout of the owner's own repository."""

    def branch(self, trial: WorkspaceTrial) -> str:
        assert trial.plan.branch is not None
        return f"refs/heads/{trial.plan.branch}"

    def test_it_is_a_worktree_on_its_own_branch(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        before = branches(trial)
        trial.apply()
        assert branches(trial) == {**before, self.branch(trial): trial.plan.base_commit}
        assert trial.plan.path in worktrees(trial)
        head = git.git("symbolic-ref", "--short", "HEAD", cwd=trial.plan.path)
        assert head.text.strip() == trial.plan.branch
        trial.release()
        assert branches(trial) == before
        assert trial.plan.path not in worktrees(trial)

    def test_repository_of_the_owner_is_as_before(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        before = look(Path(trial.plan.repository))
        trial.apply()
        trial.release()
        after = look(Path(trial.plan.repository))
        changed = {name for name in before if before[name] != after.get(name)}
        assert changed == set()
        # Empty directories of git's own, and its list of packed refs, may stay; records may not.
        added = {name for name in after.keys() - before.keys() if after[name][1]}
        assert added <= {"packed-refs"}

    def test_apply_leaves_index_and_head_of_the_owner_alone(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        checkout = Path(trial.plan.checkout)
        write_files(checkout, {"staged": b"s", "README.md": b"unstaged\n"})
        git.git("add", "staged", cwd=str(checkout))
        names = ("HEAD", "index", "config")
        before = {name: Path(trial.plan.repository, name).read_bytes() for name in names}
        trial.apply()
        trial.release()
        assert before == {name: Path(trial.plan.repository, name).read_bytes() for name in names}

    def test_base_that_is_not_checked_out(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        checkout = trial.plan.checkout
        write_files(Path(checkout), {"README.md": b"later\n"})
        git.git("commit", "--quiet", "--all", "-m", "later", cwd=checkout, env=IDENTITY)
        trial.apply()
        assert (trial.root / "README.md").read_bytes() == b"# Sample\n"
        trial.release()

    def test_taken_branch_is_refused_and_stays(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        git.create_ref(self.branch(trial), trial.plan.base_commit, cwd=trial.plan.repository)
        before = branches(trial)
        with refused(StateError):
            trial.apply()
        trial.release(keep_branch=True)
        assert branches(trial) == before

    def test_branch_without_a_tree_is_released(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        before = branches(trial)
        git.create_ref(self.branch(trial), trial.plan.base_commit, cwd=trial.plan.repository)
        trial.release()
        assert branches(trial) == before

    def test_branch_can_be_kept(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        write_files(trial.root, {"new": b"n"})
        tip = commit_all(trial)
        trial.release(keep_branch=True)
        assert branches(trial)[self.branch(trial)] == tip
        assert not trial.root.exists()

    def test_branch_that_the_owner_checked_out_stays(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        files.remove_tree(trial.root, within=trial.home)
        git.git("worktree", "prune", cwd=trial.plan.repository)
        git.git("switch", "--quiet", str(trial.plan.branch), cwd=trial.plan.checkout)
        trial.release()
        assert self.branch(trial) in branches(trial)

    def test_commits_are_work_until_another_branch_holds_them(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        for number in range(2):
            write_files(trial.root, {f"new-{number}": b"n"})
            commit_all(trial)
        assert trial.work().commits == 2
        git.git("merge", "--quiet", "--ff-only", str(trial.plan.branch), cwd=trial.plan.checkout)
        assert not trial.work().any
        trial.release()

    def test_commits_away_from_the_branch_are_work(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        git.git("switch", "--quiet", "--detach", cwd=trial.plan.path)
        write_files(trial.root, {"new": b"n"})
        tip = commit_all(trial)
        assert trial.work().commits == 1
        point = trial.require_saved()
        trial.release()
        assert point.head_commit == tip
        again = trial.restored(point)
        assert git.find_commit("HEAD", cwd=again.plan.path) == tip
        again.release()

    def test_branch_that_stays_holds_its_commits(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        write_files(trial.root, {"new": b"n"})
        commit_all(trial)
        staying = replace(trial, plan=trial.plan._replace(branch=None))
        assert trial.work().commits == 1
        assert not staying.work().any
        assert staying.save() is None
        write_files(trial.root, {"newer": b"n"})
        assert staying.work().untracked == ("newer",)
        assert staying.work().commits == 0
        git.git("switch", "--quiet", "--detach", cwd=trial.plan.path)
        commit_all(trial)
        assert staying.work().commits == 1
        trial.release(keep_branch=True)

    def test_commits_come_back(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        write_files(trial.root, {"new": b"n"})
        tip = commit_all(trial, "the work")
        point = trial.require_saved()
        trial.release()
        assert self.branch(trial) not in branches(trial)
        again = trial.restored(point)
        assert git.find_commit("HEAD", cwd=again.plan.path) == tip
        assert not again.work().uncommitted
        again.release()

    def test_index_comes_back(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        write_files(trial.root, {"README.md": b"staged\n"})
        git.git("add", "README.md", cwd=trial.plan.path)
        write_files(trial.root, {"README.md": b"and more\n", "new": b"n"})
        asked = ("status", "--porcelain")
        before = git.git(*asked, cwd=trial.plan.path).text
        point = trial.require_saved()
        assert git.git(*asked, cwd=trial.plan.path).text == before
        trial.release()
        again = trial.restored(point)
        assert git.git(*asked, cwd=again.plan.path).text == before
        assert git.git("show", ":README.md", cwd=again.plan.path).stdout == b"staged\n"
        again.release()

    def test_ignored_files_are_counted_and_are_no_work(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        write_files(trial.root, {"build/a": b"1", "build/b": b"2"})
        found = trial.work()
        assert not found.any
        assert found.ignored == 1
        trial.release()

    def test_nested_repository_is_kept_as_files(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        nested = trial.root / "vendor" / "lib"
        write_files(nested, {"code.c": b"int x;\n"})
        git.git("init", "--quiet", ".", cwd=str(nested))
        git.git("add", "--all", cwd=str(nested))
        git.git("commit", "--quiet", "-m", "n", cwd=str(nested), env=IDENTITY)
        write_files(trial.root, {"beside": b"b"})
        assert trial.work().nested == ("vendor/lib/",)
        point = trial.require_saved()
        trial.release()
        assert point.files is not None
        kept = [path for path in Path(point.files).rglob("code.c") if path.is_file()]
        assert [path.read_bytes() for path in kept] == [b"int x;\n"]
        assert git.find_commit("HEAD", cwd=str(kept[0].parent)) is not None
        recovery_points.drop(shelf_of(trial), point)
        assert not Path(point.files).exists()

    def test_severed_workspace_is_kept_as_files(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        write_files(trial.root, {"new": b"precious"})
        (trial.root / ".git").unlink()
        assert trial.work().any
        point = trial.require_saved()
        trial.release()
        assert point.files is not None
        assert [path.read_bytes() for path in Path(point.files).rglob("new")] == [b"precious"]

    def test_lost_repository_loses_no_work(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        write_files(trial.root, {"new": b"precious"})
        files.remove_tree(Path(trial.plan.checkout), within=tmp_path)
        point = trial.require_saved()
        trial.release()
        assert point.files is not None
        assert [path.read_bytes() for path in Path(point.files).rglob("new")] == [b"precious"]

    def test_unfinished_merge_is_saved(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        write_files(trial.root, {"README.md": b"ours\n"})
        ours = commit_all(trial, "ours")
        git.git("switch", "--quiet", "--detach", trial.plan.base_commit, cwd=trial.plan.path)
        write_files(trial.root, {"README.md": b"theirs\n"})
        commit_all(trial, "theirs")
        git.git("merge", "--quiet", ours, cwd=trial.plan.path, env=IDENTITY, allowed=(1,))
        write_files(trial.root, {"README.md": b"half solved\n"})
        assert trial.work().uncommitted == ("README.md",)
        point = trial.require_saved()
        trial.release()
        again = trial.restored(point)
        assert (again.root / "README.md").read_bytes() == b"half solved\n"
        again.release()

    def test_tools_hold_the_lock(self, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
        trial = self.trial(tmp_path)
        real = programs.find_program("git")
        seen = tmp_path / "seen"
        seen.mkdir()
        write_files(tmp_path, {"bin/git": _SPY.format(seen=seen, real=real).encode()})
        (tmp_path / "bin" / "git").chmod(0o755)
        with monkeypatch.context() as patch, held_lock(trial.home) as lock:
            shimmed = (str(tmp_path / "bin"), *programs.SYSTEM_DIRECTORIES)
            patch.setattr(programs, "SYSTEM_DIRECTORIES", shimmed)
            self.driver().apply(trial.plan, lock=lock)
        texts = [path.read_text() for path in seen.iterdir()]
        assert texts, "no tool was seen"
        assert all(str(trial.home / "lock") in text for text in texts)
        trial.release()

    def test_points_are_listed_and_dropped(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        write_files(trial.root, {"new.txt": b"1"})
        first = trial.require_saved("trial/1")
        second = trial.require_saved("trial/2")
        assert (first.id, first.capsule) == ("trial/1", "trial")
        assert sorted(point.id for point in listed(trial)) == ["trial/1", "trial/2"]
        stamps = [point.stored_at for point in listed(trial)]
        assert stamps == sorted(stamps, reverse=True)
        recovery_points.drop(shelf_of(trial), first)
        assert listed(trial) == [second]
        trial.release()
        assert listed(trial) == [second]


def shelf_of(trial: WorkspaceTrial) -> recovery_points.Shelf:
    return recovery_points.Shelf(trial.plan.repository, trial.home)


def listed(trial: WorkspaceTrial) -> list[RecoveryPoint]:
    found: list[str] = []
    points_found = recovery_points.points(shelf_of(trial), warn=found.append)
    assert found == []
    return points_found
