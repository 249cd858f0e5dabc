"""What every workspace driver must do; see `atoll.drivers.contracts.WorkspaceDriver`.

`WorkspaceSuite` is for all of them, `PrivateWorkspaceSuite` for those that make files of their
own. Drivers on git add `repository.GitWorkspaceSuite`.
"""
# ruff: noqa: S101 - a test method says what must hold with `assert`

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from atoll.drivers.contracts import SharedDriver, WorkspaceRequest
from atoll.host import files, git
from atoll.model.errors import StateError
from atoll.model.names import printable
from atoll.model.plan import Lease, WorkspacePlan
from atoll.model.state import RecoveryPoint, Work
from atoll.testing.conformance.witness import (
    ODD,
    Seen,
    held_lock,
    look,
    refused,
    release_elsewhere,
)

FILES: dict[str, bytes] = {
    "README.md": b"# Sample\n",
    "src/calc.py": b"def add(a, b):\n    return a + b\n",
    "data/blob.bin": bytes(range(256)),
    "with space/\xe9t\xe9.txt": b"summer\n",
    ".gitignore": b"build/\n",
}
"""What the base of every trial holds."""

IDENTITY = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Suite"), ("EMAIL", "suite@localhost"))
}


def write_files(root: Path, content: dict[str, bytes]) -> None:
    for name, data in content.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def git_request(place: Path, name: str = "trial") -> WorkspaceRequest:
    """A git repository of FILES in `place/project`, and a capsule of it to be."""
    project = place / "project"
    write_files(project, FILES)
    git.git("init", "--quiet", "--initial-branch=main", ".", cwd=str(project))
    git.git("add", "--all", "--force", cwd=str(project))
    git.git("commit", "--quiet", "-m", "base", cwd=str(project), env=IDENTITY)
    return WorkspaceRequest(
        name=name,
        repository=git.find_checkout(str(project)).repository,
        checkout=str(project),
        base_commit=str(git.find_commit("HEAD", cwd=str(project))),
        path=str(place / "home" / name / "workspace" / name),
    )


@dataclass(frozen=True, kw_only=True)
class WorkspaceTrial:
    """One workspace, from request to release. Each call may be made on a driver of its own."""

    driver: Callable[[], SharedDriver]
    request: WorkspaceRequest
    plan: WorkspacePlan
    place: Path

    @property
    def home(self) -> Path:
        return self.place / "home"

    @property
    def root(self) -> Path:
        return Path(self.plan.path)

    def files(self) -> Seen:
        """Without directories: git stores none that is empty."""
        seen = look(self.root, without=".git")
        return {name: entry for name, entry in seen.items() if not stat.S_ISDIR(entry[0])}

    def apply(self) -> None:
        with held_lock(self.home) as lock:
            self.driver().apply(self.plan, lock=lock)

    def release(self, *, keep_branch: bool = False) -> None:
        self.driver().release(self.plan, home=self.home, keep_branch=keep_branch)

    def work(self) -> Work:
        return self.driver().work(self.plan)

    def save(self, point: str = "trial/1") -> RecoveryPoint | None:
        base = self.plan.base_commit
        return self.driver().save(self.plan, point=point, base=base, home=self.home)

    def require_saved(self, point: str = "trial/1") -> RecoveryPoint:
        found = self.save(point)
        assert found is not None, "there was work, and it was not stored"
        return found

    def restored(self, point: RecoveryPoint, name: str = "restored") -> WorkspaceTrial:
        """A fresh workspace with what a point holds, made as the engine makes it."""
        path = self.home / name / "workspace" / name
        request = self.request._replace(name=name, path=str(path), base_commit=point.head_commit)
        trial = replace(self, request=request, plan=self.driver().plan(request))
        trial.apply()
        with held_lock(self.home) as lock:
            trial.driver().restore(trial.plan, point, lock=lock)
        return trial


class WorkspaceSuite:
    """For every driver: what is promised even when the workspace is the checkout itself."""

    def driver(self) -> SharedDriver:
        raise NotImplementedError

    def request(self, place: Path) -> WorkspaceRequest:
        """A project whose base holds FILES, below `place`; the path lies below `place/home`."""
        return git_request(place)

    def trial(self, place: Path) -> WorkspaceTrial:
        (place / "home").mkdir(parents=True)
        request = self.request(place)
        plan = self.driver().plan(request)
        return WorkspaceTrial(driver=self.driver, request=request, plan=plan, place=place)

    def test_check_changes_nothing(self, tmp_path: Path) -> None:
        home = self.trial(tmp_path).home
        before = look(tmp_path)
        assert self.driver().check(home) == self.driver().check(home)
        assert look(tmp_path) == before

    def test_plan_is_pure(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        before = look(tmp_path)
        assert self.driver().plan(trial.request) == trial.plan
        assert trial.plan.driver == self.driver().name
        assert look(tmp_path) == before

    def test_plan_touches_nothing_that_it_names(self) -> None:
        request = WorkspaceRequest(
            name="trial",
            repository="/nonexistent/repository",
            checkout="/nonexistent/checkout",
            base_commit="0" * 40,
            path="/nonexistent/home/trial",
        )
        assert self.driver().plan(request).base_commit == request.base_commit

    def test_plan_survives_the_store(self, tmp_path: Path) -> None:
        lease = Lease(kind="workspace", plan=self.trial(tmp_path).plan)
        assert Lease.parse("workspace", json.loads(json.dumps(lease.payload()))) == lease

    def test_apply_gives_the_files_of_the_base(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        assert {name: data for name, (_, data) in trial.files().items()} == FILES
        assert not trial.work().any
        trial.release()

    def test_apply_and_release_leave_the_checkout_alone(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        checkout = Path(trial.plan.checkout)
        write_files(checkout, {"README.md": b"being edited\n", "build/out": b"x", "new": b"n"})
        before = look(checkout, without=".git")
        trial.apply()
        assert look(checkout, without=".git") == before
        trial.save()
        trial.release()
        assert look(checkout, without=".git") == before

    def test_release_of_nothing_is_fine(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        before = look(tmp_path)
        trial.release()
        trial.release(keep_branch=True)
        assert look(tmp_path) == before

    def test_release_is_idempotent(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        trial.release()
        once = look(tmp_path)
        trial.release()
        assert look(tmp_path) == once

    def test_release_from_another_process(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        lease = Lease(kind="workspace", plan=trial.plan)
        for _ in range(2):
            release_elsewhere(self.driver(), lease, home=trial.home, options={"keep_branch": False})
        kept = trial.plan.path == trial.plan.checkout
        assert Path(trial.plan.path).exists() == kept

    def test_project_path_with_anything_in_it(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path / ODD)
        trial.apply()
        assert {name: data for name, (_, data) in trial.files().items()} == FILES
        assert not trial.work().any
        trial.release()
        assert not list(trial.home.rglob("README.md"))

    def test_nothing_is_stored_when_there_is_no_work(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        assert trial.save() is None
        trial.release()


class PrivateWorkspaceSuite(WorkspaceSuite):
    """For drivers that make files of their own: those go, but never with work in them."""

    def change(self, trial: WorkspaceTrial) -> None:
        """Changes, removes and adds files, as an agent would."""
        root = trial.root
        write_files(root, {"README.md": b"# Changed\n", "new.txt": b"new\n", "a/b/c": b"deep\n"})
        (root / "data" / "blob.bin").unlink()
        os.symlink("README.md", root / "link")
        (root / "tool").write_bytes(b"#!/bin/sh\n")
        (root / "tool").chmod(0o755)

    def test_release_removes_its_files_and_no_others(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        neighbour = trial.home / "neighbour" / "file"
        write_files(trial.home, {"neighbour/file": b"stays"})
        trial.apply()
        os.symlink(neighbour.parent, trial.root / "way-out")
        trial.release()
        assert not trial.root.exists()
        assert neighbour.read_bytes() == b"stays"

    def test_changes_of_the_owner_do_not_shine_through(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        write_files(Path(trial.plan.checkout), {"README.md": b"of the owner\n", "later": b"x"})
        assert (trial.root / "README.md").read_bytes() == FILES["README.md"]
        assert not (trial.root / "later").exists()
        assert not trial.work().any
        trial.release()

    def test_taken_path_is_refused(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        write_files(trial.root, {"somebody": b"else's"})
        with refused(StateError):
            trial.apply()
        assert (trial.root / "somebody").read_bytes() == b"else's"

    def test_half_made_tree_is_released(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        (trial.root / "README.md").unlink()
        (trial.root / "src" / "calc.py").unlink()
        trial.release()
        assert not trial.root.exists()

    def test_lost_tree_is_released_and_can_be_made_again(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        files.remove_tree(trial.root, within=trial.home)
        trial.release()
        trial.apply()
        assert (trial.root / "README.md").read_bytes() == FILES["README.md"]
        trial.release()

    def test_work_names_what_was_changed(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        write_files(trial.root, {"README.md": b"changed\n"})
        (trial.root / "data" / "blob.bin").unlink()
        assert sorted(trial.work().uncommitted) == ["README.md", "data/blob.bin"]
        trial.release()

    def test_work_names_what_was_added(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        names = ["a b.txt", "deep/er/file", "line\nbreak", "é"]
        write_files(trial.root, dict.fromkeys(names, b"new"))
        found = trial.work()
        # As they can be shown: what a file is called must not reach a terminal as it is.
        assert sorted(found.untracked) == sorted(map(printable, names))
        assert found.uncommitted == ()
        trial.release()

    def test_asking_changes_nothing(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        self.change(trial)
        before = look(tmp_path)
        assert trial.work() == trial.work()
        assert look(tmp_path) == before
        trial.release()

    def test_what_was_saved_comes_back(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        self.change(trial)
        before, work = trial.files(), trial.work()
        point = trial.require_saved()
        trial.release()
        again = trial.restored(point)
        assert again.files() == before
        found = again.work()
        assert sorted(found.untracked) == sorted(work.untracked)
        assert sorted(found.uncommitted) == sorted(work.uncommitted)
        again.release()

    def test_bytes_that_are_no_text_come_back(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        name = os.fsdecode(b"caf\xe9 \x01")
        write_files(trial.root, {name: b"\0\xff\r\n"})
        point = trial.require_saved()
        trial.release()
        again = trial.restored(point)
        assert (again.root / name).read_bytes() == b"\0\xff\r\n"
        again.release()

    def test_saving_is_idempotent_for_one_point(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        self.change(trial)
        first = trial.require_saved()
        assert trial.save() == first
        trial.release()
        # A command that was killed after the release asks once more.
        assert trial.save() == first

    def test_work_that_came_after_a_save_is_not_lost(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        write_files(trial.root, {"first": b"1"})
        trial.save()
        write_files(trial.root, {"second": b"2"})
        point = trial.require_saved()
        trial.release()
        again = trial.restored(point)
        assert (again.root / "second").read_bytes() == b"2"
        again.release()

    def test_saving_leaves_the_owner_alone(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.apply()
        self.change(trial)
        before = look(Path(trial.plan.checkout), without=".git")
        trial.save()
        assert look(Path(trial.plan.checkout), without=".git") == before
        trial.release()
