"""What every workspace driver with layers must do before anything runs in its view; see
`atoll.drivers.contracts.LayeredDriver`.

The suite calls the driver and nothing else: it needs no engine, no view and no processes inside.
`layered.LayeredSuite` adds what needs them.
"""
# ruff: noqa: S101 - a test method says what must hold with `assert`

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from atoll.drivers.contracts import Author, ExportedCommits, LayeredDriver, WorkspaceRequest
from atoll.drivers.layers.pool import Pool, new_upper
from atoll.model.errors import PrerequisiteError, StateError
from atoll.model.plan import Lease, WorkspacePlan
from atoll.model.secretvalues import SecretSearch
from atoll.model.state import RecoveryPoint
from atoll.testing.conformance.witness import look, refused, release_elsewhere

_AUTHOR = Author("Suite", "suite@localhost")
_OTHER_TIP = "1" * 40

_NESTED = {
    "vendor/lib/.git/HEAD": b"ref: refs/heads/main\n",
    "vendor/lib/.git/config": b"[core]\n\trepositoryformatversion = 0\n",
    "vendor/lib/.git/objects/info/alternates": b"",
    "vendor/lib/.git/refs/heads/main": b"2" * 40 + b"\n",
    "vendor/lib/code.c": b"code\n",
}
"""A repository in the workspace: git does not store its files."""


class LayeredContractSuite:
    """The verbs of the contract. A subclass makes the driver and a project, and writes, removes and
    reads files of a workspace without a view.
    """

    tracked = "README.md"
    """A file that the base commit holds."""

    @property
    def made(self) -> LayeredDriver:
        """The driver."""
        raise NotImplementedError

    @property
    def place(self) -> Path:
        """A directory for the suite, outside of the home and the project."""
        raise NotImplementedError

    @property
    def atoll_home(self) -> Path:
        raise NotImplementedError

    def request(self, name: str) -> WorkspaceRequest:
        """Asks for a workspace of the project, whose base commit holds `tracked`."""
        raise NotImplementedError

    def base_layers(self) -> tuple[str, ...]:
        """The frozen layers of the base commit."""
        raise NotImplementedError

    def write(self, plan: WorkspacePlan, name: str, data: bytes) -> None:
        """Writes a file of the workspace, as a process inside would."""
        raise NotImplementedError

    def remove(self, plan: WorkspacePlan, name: str) -> None:
        raise NotImplementedError

    def read(self, plan: WorkspacePlan, name: str) -> bytes | None:
        """The content of a file of the workspace; None when there is none."""
        raise NotImplementedError

    def fresh_plan(self, name: str) -> WorkspacePlan:
        """A plan on the layers of the project that nothing has been made of."""
        return self.made.on(self.made.plan(self.request(name)), self.base_layers(), new_upper())

    def layers(self) -> set[str]:
        return set(Pool(self.request("any").pool).all())

    @contextmanager
    def planned(self, *names: str) -> Iterator[list[WorkspacePlan]]:
        """Fresh plans, released at the end. No collection of unused layers runs meanwhile."""
        plans = [self.fresh_plan(name) for name in names]
        with Pool(plans[0].pool).turn(shared=True):
            try:
                yield plans
            finally:
                for plan in plans:
                    self.release(plan)

    @contextmanager
    def applied(self, *names: str) -> Iterator[list[WorkspacePlan]]:
        with self.planned(*names) as plans:
            for plan in plans:
                self.made.apply(plan, lock=-1)
            yield plans

    @contextmanager
    def returned(self, plan: WorkspacePlan, layers: tuple[str, ...]) -> Iterator[WorkspacePlan]:
        """The workspace as it is after going back to these layers."""
        after = self.made.on(plan, layers, new_upper())
        self.made.prepare(after)
        try:
            yield after
        finally:
            self.made.discard(after, home=self.atoll_home)

    def release(self, plan: WorkspacePlan) -> None:
        self.made.release(plan, home=self.atoll_home, keep_branch=False)

    # Planning

    def test_check_is_content_and_changes_nothing(self) -> None:
        home = self.place / "empty"
        home.mkdir()
        assert self.made.check(home) == []
        before = look(home)
        assert self.made.check(home) == []
        assert look(home) == before
        assert len(before) <= 1, "more than a note of what was found"

    def test_probe_agrees_with_check(self) -> None:
        found = self.made.probe(self.atoll_home)
        assert found.mode
        assert found == self.made.probe(self.atoll_home)
        assert self.made.check(self.atoll_home) == []

    def test_planning_is_pure(self) -> None:
        plan = self.fresh_plan("pure")
        before = self.layers()
        again = self.made.on(plan, plan.layers[:1], "u1")
        assert again == self.made.on(plan, plan.layers[:1], "u1")
        assert again.layers == plan.layers[:1]
        assert again.upper == "u1"
        assert again._replace(layers=plan.layers, upper=plan.upper) == plan
        assert plan.driver == self.made.name
        assert plan.path == self.request("pure").checkout
        assert self.layers() == before

    def test_plan_has_no_layers_yet(self) -> None:
        plan = self.made.plan(self.request("bare"))
        assert plan == self.made.plan(self.request("bare"))
        assert (plan.layers, plan.upper) == ((), "")
        assert plan.is_layered
        assert plan.branch

    def test_layers_inside_the_project_are_refused(self) -> None:
        request = self.request("inside")
        with refused(PrerequisiteError):
            self.made.plan(request._replace(pool=f"{request.checkout}/home/pools/x"))

    def test_plan_survives_the_store(self) -> None:
        lease = Lease(kind="workspace", plan=self.fresh_plan("stored"))
        assert Lease.parse("workspace", json.loads(json.dumps(lease.payload()))) == lease

    # Making and removing

    def test_making_again_keeps_what_was_written(self) -> None:
        with self.applied("again") as [plan]:
            assert self.read(plan, self.tracked) is not None
            self.write(plan, "state", b"one")
            self.remove(plan, self.tracked)
            self.write(plan, f".git/refs/heads/{plan.branch}", f"{_OTHER_TIP}\n".encode())
            self.made.prepare(plan)
            self.made.apply(plan, lock=-1)
            assert self.read(plan, "state") == b"one"
            assert self.read(plan, self.tracked) is None
            assert self.made.tip(plan) == _OTHER_TIP

    def test_releasing_can_be_repeated(self) -> None:
        with self.planned("released") as [plan]:
            before = self.layers()
            for _ in range(2):
                self.made.apply(plan, lock=-1)
                assert self.layers() >= before | {plan.upper}
                self.release(plan)
                self.made.discard(plan, home=self.atoll_home)
                assert plan.upper not in self.layers()
                assert self.layers() >= before

    def test_releasing_from_another_process(self) -> None:
        with self.applied("elsewhere") as [plan]:
            options = {"keep_branch": False}
            for _ in range(2):
                lease = Lease(kind="workspace", plan=plan)
                release_elsewhere(self.made, lease, home=self.atoll_home, options=options)
            assert plan.upper not in self.layers()

    def test_release_of_nothing_removes_nothing(self) -> None:
        """Neither of a workspace that was never made nor of a plan that `on` has not seen."""
        with self.applied("kept", "never") as [kept, never]:
            self.write(kept, "state", b"kept")
            self.made.release(never, home=self.atoll_home, keep_branch=False)
            before = self.layers()
            for plan in (never, self.made.plan(self.request("bare"))):
                self.release(plan)
                self.made.discard(plan, home=self.atoll_home)
            assert self.layers() == before
            assert self.read(kept, "state") == b"kept"

    def test_discarded_layer_begins_anew(self) -> None:
        with self.applied("anew") as [plan]:
            self.write(plan, "state", b"one")
            self.remove(plan, self.tracked)
            self.made.discard(plan, home=self.atoll_home)
            assert plan.upper not in self.layers()
            self.made.prepare(plan)
            assert self.read(plan, "state") is None
            assert self.read(plan, self.tracked) is not None

    def test_workspaces_on_the_same_layers_are_separate(self) -> None:
        with self.applied("one", "two") as [one, two]:
            before = self.read(two, self.tracked)
            assert before is not None
            self.write(one, "state", b"one")
            self.write(two, "state", b"two")
            self.remove(one, self.tracked)
            assert (self.read(one, "state"), self.read(two, "state")) == (b"one", b"two")
            assert self.read(two, self.tracked) == before
            self.release(one)
            assert self.read(two, "state") == b"two"

    def test_view_needs_the_checkout(self) -> None:
        with self.applied("seen") as [plan]:
            self.write(plan, "state", b"one")
            self.made.view(plan)
            assert self.read(plan, "state") == b"one"
            with refused(StateError):
                self.made.view(plan._replace(checkout=str(self.place / "gone")))

    # Snapshots, rollback and forks

    def test_state_of_an_idle_workspace_is_sealed(self) -> None:
        self.require_sealed(busy=False)

    def test_state_of_a_busy_workspace_is_sealed(self) -> None:
        self.require_sealed(busy=True)

    def require_sealed(self, *, busy: bool) -> None:
        """The workspace continues from the sealed state, which stays whatever happens to it."""
        with self.applied(f"sealed-{int(busy)}") as [plan], ExitStack() as stack:
            self.write(plan, "state", b"one")
            self.write(plan, "early", b"e")
            sealed = self.made.seal(plan, busy=busy)
            after = sealed.plan
            stack.callback(self.release, after)
            assert sealed.inexact == ()
            assert set(sealed.layers) <= self.layers()
            assert after.upper in self.layers()
            assert after.upper not in sealed.layers
            assert after._replace(layers=plan.layers, upper=plan.upper) == plan
            assert (self.read(after, "state"), self.read(after, "early")) == (b"one", b"e")
            self.require_early(after, sealed.layers)
            self.write(after, "state", b"two")
            self.write(after, "later", b"l")
            self.remove(after, "early")
            self.remove(after, self.tracked)
            assert self.read(after, "state") == b"two"
            assert self.read(after, "early") is None
            self.require_early(after, sealed.layers)
            self.made.discard(after, home=self.atoll_home)
            self.require_early(after, sealed.layers)

    def require_early(self, plan: WorkspacePlan, layers: tuple[str, ...]) -> None:
        with self.returned(plan, layers) as back:
            assert (self.read(back, "state"), self.read(back, "early")) == (b"one", b"e")
            assert self.read(back, "later") is None
            assert self.read(back, self.tracked) is not None

    def test_seals_are_stacked(self) -> None:
        """Each holds its own moment, also what was removed until then."""
        with self.applied("stacked") as [plan], ExitStack() as stack:
            now, sealed = plan, []
            for number, busy in enumerate((False, True, False, False)):
                self.write(now, "state", b"%d" % number)
                if number == 2:
                    self.remove(now, self.tracked)
                sealed.append(self.made.seal(now, busy=busy))
                now = sealed[-1].plan
                stack.callback(self.release, now)
            self.write(now, "state", b"now")
            for number, point in enumerate(sealed):
                with self.returned(now, point.layers) as back:
                    assert self.read(back, "state") == b"%d" % number
                    assert (self.read(back, self.tracked) is None) == (number >= 2)

    def test_going_back_and_on_from_there(self) -> None:
        with self.applied("back") as [plan], ExitStack() as stack:
            self.write(plan, "state", b"one")
            first = self.made.seal(plan, busy=False)
            stack.callback(self.release, first.plan)
            self.write(first.plan, "state", b"two")
            second = self.made.seal(first.plan, busy=False)
            stack.callback(self.release, second.plan)
            with self.returned(second.plan, first.layers) as back:
                assert self.read(back, "state") == b"one"
                self.write(back, "state", b"three")
                third = self.made.seal(back, busy=False)
                stack.callback(self.release, third.plan)
                for point, content in ((first, b"one"), (second, b"two"), (third, b"three")):
                    with self.returned(third.plan, point.layers) as there:
                        assert self.read(there, "state") == content

    def test_fork_has_a_branch_of_its_own(self) -> None:
        with self.applied("origin") as [plan], ExitStack() as stack:
            self.write(plan, "state", b"one")
            sealed = self.made.seal(plan, busy=False)
            stack.callback(self.release, sealed.plan)
            branch = f"{plan.branch}-fork"
            with self.returned(sealed.plan._replace(branch=branch), sealed.layers) as fork:
                self.made.rename(fork, former=str(plan.branch))
                assert self.made.tip(fork) == plan.base_commit
                assert self.read(fork, ".git/HEAD") == f"ref: refs/heads/{branch}\n".encode()
                assert self.read(fork, f".git/refs/heads/{plan.branch}") is None
                self.write(fork, "state", b"two")
                assert self.read(sealed.plan, "state") == b"one"
                head = f"ref: refs/heads/{plan.branch}\n".encode()
                assert self.read(sealed.plan, ".git/HEAD") == head

    # What is claimed of a workspace

    def test_no_change_is_overlooked(self) -> None:
        """`is_untouched` and `is_pristine` may always be False, but True only if it is true."""
        with self.applied("noticed") as [plan], ExitStack() as stack:
            now = self.made.seal(plan, busy=False).plan
            stack.callback(self.release, now)
            self.write(now, "new", b"n")
            assert not self.made.is_untouched(now)
            assert not self.made.is_pristine(now)
            after = self.made.seal(now, busy=False).plan
            stack.callback(self.release, after)
            assert not self.made.is_pristine(after)
            self.remove(after, self.tracked)
            assert not self.made.is_untouched(after)
            assert not self.made.is_pristine(after)

    def test_removed_file_and_moved_branch_are_no_pristine_workspace(self) -> None:
        with self.applied("shorter", "moved") as [shorter, moved]:
            self.remove(shorter, self.tracked)
            assert not self.made.is_pristine(shorter)
            self.write(moved, f".git/refs/heads/{moved.branch}", f"{_OTHER_TIP}\n".encode())
            assert not self.made.is_pristine(moved)

    def test_what_does_not_exist_is_neither_untouched_nor_pristine(self) -> None:
        with self.planned("absent") as [plan]:
            assert not self.made.is_untouched(plan)
            assert not self.made.is_pristine(plan)

    def test_tip_is_that_of_the_moment(self) -> None:
        with self.applied("tip") as [plan], ExitStack() as stack:
            assert self.made.tip(plan) == plan.base_commit
            sealed = self.made.seal(plan, busy=False)
            stack.callback(self.release, sealed.plan)
            ref = f".git/refs/heads/{plan.branch}"
            self.write(sealed.plan, ref, f"{_OTHER_TIP}\n".encode())
            assert self.made.tip(sealed.plan) == _OTHER_TIP
            with self.returned(sealed.plan, sealed.layers) as back:
                assert self.made.tip(back) == plan.base_commit

    def test_hook_is_found(self) -> None:
        with self.applied("hook") as [plan]:
            assert not self.made.has_hook(plan, "commit-msg")
            self.write(plan, ".git/hooks/commit-msg", b"#!/bin/sh\n")
            assert self.made.has_hook(plan, "commit-msg")

    # Work

    def save(self, plan: WorkspacePlan, point: str) -> RecoveryPoint | None:
        base = plan.base_commit
        return self.made.save(plan, point=point, base=base, home=self.atoll_home)

    def test_new_workspace_has_no_work(self) -> None:
        with self.applied("idle") as [plan]:
            assert not self.made.work(plan).any
            assert self.save(plan, "idle/1") is None

    def test_work_is_named(self) -> None:
        with self.applied("busy") as [plan], ExitStack() as stack:
            self.write(plan, "new", b"n")
            now = self.made.seal(plan, busy=False).plan
            stack.callback(self.release, now)
            self.remove(now, self.tracked)
            for seen in (now, now._replace(branch=None)):
                found = self.made.work(seen)
                assert found == self.made.work(seen)
                assert (found.untracked, found.uncommitted) == (("new",), (self.tracked,))
                assert found.commits == 0

    def test_work_is_found_without_the_repository(self) -> None:
        with self.applied("destroyed") as [plan]:
            self.write(plan, "new", b"n")
            self.remove(plan, ".git/HEAD")
            self.remove(plan, f".git/refs/heads/{plan.branch}")
            assert self.made.work(plan).any

    def test_saving_is_idempotent_for_one_point(self) -> None:
        with self.applied("saved") as [plan]:
            self.write(plan, "new", b"n")
            first = self.save(plan, "saved/1")
            assert first is not None
            assert (first.id, first.capsule) == ("saved/1", "saved")
            assert first.base_commit == first.head_commit == plan.base_commit
            assert self.save(plan, "saved/1") == first
            self.release(plan)
            # A command that was killed after the release saves once more.
            assert self.save(plan, "saved/1") == first

    def test_saved_files_are_put_back(self) -> None:
        with self.applied("nested", "other") as [plan, other]:
            for name, data in _NESTED.items():
                self.write(plan, name, data)
            assert self.made.work(plan).any
            point = self.save(plan, "nested/1")
            self.release(plan)
            assert point is not None
            assert point.files is not None
            self.made.put_back(other, Path(point.files))
            assert self.read(other, "vendor/lib/code.c") == b"code\n"
            assert self.read(other, self.tracked) is not None

    def test_difference_names_what_has_changed(self) -> None:
        with self.applied("diff") as [plan], ExitStack() as stack:
            assert self.made.diff(plan, base=plan.base_commit, stat=False).text == b""
            self.write(plan, "early", b"e")
            sealed = self.made.seal(plan, busy=False)
            now = sealed.plan
            stack.callback(self.release, now)
            assert self.made.diff_since(now, sealed.layers, stat=False).text == b""
            self.write(now, "later", b"l")
            whole = self.made.diff(now, base=plan.base_commit, stat=False).text
            assert b"early" in whole
            assert b"later" in whole
            since = self.made.diff_since(now, sealed.layers, stat=False).text
            assert b"later" in since
            assert b"early" not in since
            with refused(StateError):
                self.made.diff_since(now, ("s-missing",), stat=False)

    def test_commit_is_on_top_of_the_branch(self) -> None:
        with self.applied("commit") as [plan]:
            with refused(StateError):
                self.made.commit(plan, "nothing", _AUTHOR)
            self.write(plan, "new", b"n")
            made = self.made.commit(plan, "something", _AUTHOR)
            assert made.parent == plan.base_commit != made.commit
            assert made.pack
            # The branch of the workspace follows only when its own repository has the commit.
            assert self.made.tip(plan) == plan.base_commit
            self.write(plan, ".git/HEAD", b"ref: refs/heads/elsewhere\n")
            with refused(StateError):
                self.made.commit(plan, "off the branch", _AUTHOR)

    def test_secrets_are_not_brought_out(self) -> None:
        search = SecretSearch([("KEY", b"value-of-a-secret")])
        with self.applied("secret") as [plan]:
            self.write(plan, "new", b"\nvalue-of-a-secret\n")
            with refused(StateError):
                self.made.export_commits(plan, everything=True, search=search)
            with refused(StateError):
                self.made.commit(plan, "something", _AUTHOR, search=search)
            assert self.made.commit(plan, "something", _AUTHOR).parent == plan.base_commit

    def test_commits_are_brought_out(self) -> None:
        with self.applied("out") as [plan]:
            self.write(plan, "new", b"n")
            assert self.made.export_commits(plan, everything=False) == ExportedCommits(
                plan.base_commit
            )
            brought = self.made.export_commits(plan, everything=True)
            assert brought is not None
            assert brought.commit != plan.base_commit
            self.remove(plan, f".git/refs/heads/{plan.branch}")
            assert self.made.export_commits(plan, everything=False) is None
