"""Every workspace driver, and the fake, held to the contract."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from atoll.drivers.contracts import WorkspaceRequest
from atoll.drivers.registry import workspace_driver
from atoll.drivers.workspace.checkout import CheckoutWorkspace
from atoll.drivers.workspace.worktree import WorktreeWorkspace
from atoll.host import git
from atoll.host.process import run
from atoll.testing.conformance.repository import GitWorkspaceSuite, branches, worktrees
from atoll.testing.conformance.workspace import (
    PrivateWorkspaceSuite,
    WorkspaceSuite,
    git_request,
)
from atoll.testing.fakes import FakeWorkspace

pytestmark = pytest.mark.usefixtures("atoll_home")


class TestWorktree(GitWorkspaceSuite):
    def driver(self):
        return workspace_driver("worktree")

    def test_the_driver_is_the_one_of_the_registry(self, tmp_path):
        assert isinstance(self.driver(), WorktreeWorkspace)
        assert self.driver().check(tmp_path) == []

    def test_stillborn_record_is_removed(self, tmp_path):
        """`git worktree add` was killed after it made its record and before it named the place."""
        trial = self.trial(tmp_path)
        git.create_ref(self.branch(trial), trial.plan.base_commit, cwd=trial.plan.repository)
        record = Path(trial.plan.repository, "worktrees", "trial")
        record.mkdir(parents=True)
        (record / "locked").write_text("initializing")
        trial.release()
        assert not record.exists()
        assert branches(trial).keys() == {"refs/heads/main"}

    def test_record_of_a_namesake_stays(self, tmp_path):
        trial = self.trial(tmp_path)
        other = tmp_path / "elsewhere" / "trial"
        git.git("worktree", "add", "--quiet", "--detach", str(other), cwd=trial.plan.repository)
        git.git("worktree", "lock", str(other), cwd=trial.plan.repository)
        trial.apply()
        trial.release()
        assert worktrees(trial) == [trial.plan.checkout, str(other)]
        assert (other / "README.md").exists()

    def test_locked_worktree_is_released(self, tmp_path):
        trial = self.trial(tmp_path)
        trial.apply()
        git.git("worktree", "lock", trial.plan.path, cwd=trial.plan.repository)
        trial.release()
        assert worktrees(trial) == [trial.plan.checkout]

    def test_hooks_of_the_repository_do_not_run(self, tmp_path):
        trial = self.trial(tmp_path)
        trace = tmp_path / "trace"
        for name in ("post-checkout", "reference-transaction", "pre-commit", "post-index-change"):
            hook = Path(trial.plan.repository, "hooks", name)
            hook.parent.mkdir(exist_ok=True)
            hook.write_text(f"#!/bin/sh\necho {name} >> '{trace}'\n")
            hook.chmod(0o755)
        trial.apply()
        self.change(trial)
        trial.require_saved()
        trial.release()
        assert not trace.exists()

    def test_capsule_of_a_linked_worktree(self, tmp_path):
        """The owner works in a worktree of their own: it is a checkout like any other."""
        (tmp_path / "home").mkdir()
        request = git_request(tmp_path)
        linked = tmp_path / "linked"
        git.git("worktree", "add", "--quiet", "-b", "side", str(linked), cwd=request.repository)
        trial = self.trial(tmp_path / "second")
        plan = trial.plan._replace(
            repository=request.repository, checkout=str(linked), base_commit=request.base_commit
        )
        trial = replace(trial, plan=plan)
        trial.apply()
        assert not trial.work().any
        trial.release()


class TestCheckout(WorkspaceSuite):
    def driver(self):
        return workspace_driver("checkout")

    def test_the_driver_is_the_one_of_the_registry(self):
        assert isinstance(self.driver(), CheckoutWorkspace)

    def test_release_never_touches_the_checkout(self, tmp_path):
        trial = self.trial(tmp_path)
        (trial.root / "new").write_text("n")
        before = trial.files()
        trial.apply()
        trial.release()
        assert trial.files() == before
        assert not trial.work().any


class TestFake(PrivateWorkspaceSuite):
    """The fake has no git, so that what only git can do is not asked of it."""

    def driver(self):
        return self.__dict__.setdefault("_driver", FakeWorkspace())

    def request(self, place):
        request = git_request(place)
        return WorkspaceRequest(
            name=request.name,
            repository=str(place / "project"),
            checkout=request.checkout,
            base_commit=self.driver().record(place / "project"),
            path=request.path,
        )


def test_suites_need_no_pytest_to_be_imported():
    """A driver author's package may import the suites where pytest is not installed."""
    program = (
        "import sys; sys.modules['pytest'] = None; "
        "import atoll.testing.conformance.workspace, atoll.testing.conformance.repository, "
        "atoll.testing.conformance.isolation, atoll.testing.fakes; "
        "print(sys.modules['pytest'])"
    )
    done = run((sys.executable, "-c", program), env={"PATH": os.environ["PATH"]})
    assert done.text == "None\n"
