"""What every workspace driver with layers must do; see `atoll.drivers.contracts.LayeredDriver`.

    class TestMine(LayeredSuite):
        driver = "mine"
        root = Path("/somewhere/on/the/filesystem/under/trial")

The suite goes through the engine, as capsules do; it needs git, and `strace` for one test.
"""
# ruff: noqa: S101 - a test method says what must hold with `assert`

from __future__ import annotations

import os
from pathlib import Path

from atoll.drivers.contracts import ExportedCommits, LayeredDriver, WorkspaceRequest
from atoll.drivers.layers import probes
from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.drivers.registry import layered_driver
from atoll.engine.capsules import Capsule
from atoll.engine.history import upkeep
from atoll.engine.state.leases import workspace_plan
from atoll.host import files, git
from atoll.host.process import wait_until
from atoll.host.tree.layer_stack import Namespace
from atoll.host.tree.merged_tree import MergedTree
from atoll.model.plan import WorkspacePlan
from atoll.model.untrusted import InsidePath
from atoll.testing.conformance.bench import Bench, BenchSuite, commit_all
from atoll.testing.conformance.history import GitMvSuite, PrivateGitSuite
from atoll.testing.conformance.inside import FilesSuite
from atoll.testing.conformance.layered_contract import LayeredContractSuite
from atoll.testing.conformance.moments import MomentsSuite
from atoll.testing.conformance.workspace import write_files

_ODD = "a b,c:d\\e=f é'$x\"[y]|&;*"


class ContractSuite(LayeredContractSuite, BenchSuite):
    """The verbs of the contract, each by itself."""

    @property
    def made(self) -> LayeredDriver:
        return layered_driver(self.driver)

    @property
    def place(self) -> Path:
        return self.bench.root.parent

    @property
    def atoll_home(self) -> Path:
        return self.bench.home

    def request(self, name: str) -> WorkspaceRequest:
        project = self.bench.project.record
        return WorkspaceRequest(
            name=name,
            repository=project.git_dir,
            checkout=project.root,
            base_commit=str(git.find_commit("HEAD", cwd=project.root)),
            path="",
            pool=str(self.bench.session.pool(project.id)),
            mode=self.made.probe(self.bench.home).mode or "",
        )

    def base_layers(self) -> tuple[str, ...]:
        return self.bench.project.warm().layers

    def write(self, plan: WorkspacePlan, name: str, data: bytes) -> None:
        files.write_beneath(Pool(plan.pool).tree(plan.upper), f"{WORKSPACE}/{name}", data)

    def remove(self, plan: WorkspacePlan, name: str) -> None:
        tree = Pool(plan.pool).tree(plan.upper)
        (tree / WORKSPACE / name).parent.mkdir(parents=True, exist_ok=True)
        whiteout = self.made.stores_changes
        files.remove_beneath(tree, f"{WORKSPACE}/{name}", whiteout=whiteout)

    def read(self, plan: WorkspacePlan, name: str) -> bytes | None:
        layers = (*plan.layers, plan.upper) if self.made.stores_changes else (plan.upper,)
        trees = [Pool(plan.pool).tree(layer) for layer in layers]
        is_user = probes.overlay_mode(plan.way).user if self.made.stores_changes else False
        namespace: Namespace = "user" if is_user else "trusted"
        with MergedTree(trees, own=1, namespace=namespace, at=WORKSPACE) as tree:
            return tree.read(InsidePath(os.fsencode(name)), limit_bytes=1 << 20)

    def plan_of(self, capsule: Capsule) -> WorkspacePlan:
        return workspace_plan(self.bench.session, capsule.record)

    def test_driver_is_the_one_under_trial(self) -> None:
        plan = self.fresh_plan("named")
        assert plan.driver == self.driver == self.made.name
        assert plan.path == str(self.bench.root)

    def test_making_can_be_repeated(self) -> None:
        capsule = self.bench.new("repeated")
        tip = self.bench.sh(capsule, "echo r > r; git add r; git commit -qm r; git rev-parse HEAD")
        plan = self.plan_of(capsule)
        self.made.prepare(plan)
        self.made.apply(plan, lock=-1)
        assert self.bench.sh(capsule, "git rev-parse HEAD; git status -s") == tip

    def test_layers_cannot_be_written_from_inside(self) -> None:
        plan = self.plan_of(self.shared)
        pool = Pool(plan.pool)
        for layer in plan.layers:
            assert self.shared.run(["touch", str(pool.tree(layer) / "new")]).exit_code != 0
            assert not (pool.tree(layer) / "new").exists()

    def test_it_can_be_opened_from_outside(self) -> None:
        capsule = self.bench.new("opened")
        place = capsule.path
        self.bench.sh(capsule, "echo inside > from-inside")
        assert (place / "from-inside").read_text() == "inside\n"
        (place / "from-outside").write_text("outside\n")
        assert self.bench.run(capsule, "cat", "from-outside") == "outside\n"
        assert (self.made.place(self.plan_of(capsule)) or place) == place
        self.bench.require_owner_untouched()

    def test_what_was_written_is_noticed(self) -> None:
        capsule = self.bench.new("noticed")
        capsule.snapshot("now")
        self.bench.sh(capsule, "echo x > x")
        assert not self.made.is_untouched(self.plan_of(capsule))

    def test_tip_follows_the_branch(self) -> None:
        capsule = self.bench.new("tip")
        assert self.made.tip(self.plan_of(capsule)) == capsule.record.base_commit
        said = self.bench.sh(capsule, "echo t > t; git add t; git commit -qm t; git rev-parse HEAD")
        assert self.made.tip(self.plan_of(capsule)) == said.strip()

    def test_commits_are_brought_out_however_git_keeps_its_refs(self) -> None:
        """Packed, a ref is no file any more; what lies in lower layers is then out of date."""
        capsule = self.bench.new("packed")
        script = (
            "echo $1 > t; git add t; git commit -qm $1; git pack-refs --all; git rev-parse HEAD"
        )
        for word in ("one", "two", "three"):
            tip = self.bench.sh(capsule, script, word).strip()
            assert self.made.tip(self.plan_of(capsule)) in (None, tip)
            assert git.find_ref("refs/heads/atoll/packed", cwd=str(self.bench.root)) == tip
            capsule.snapshot(word)

    def test_bringing_moves_no_ref(self) -> None:
        capsule = self.bench.new("brought")
        refs = git.git("for-each-ref", cwd=str(self.bench.root)).text
        self.bench.sh(capsule, "echo b > untracked; echo b >> README.md")
        plan = self.plan_of(capsule)
        brought = self.made.export_commits(plan, everything=False)
        assert brought == ExportedCommits(capsule.record.base_commit)
        brought = self.made.export_commits(plan, everything=True)
        assert brought is not None
        tip = brought.commit
        assert git.git("for-each-ref", cwd=str(self.bench.root)).text == refs
        shown = git.git("show", f"{tip}:untracked", cwd=str(self.bench.root))
        assert shown.stdout == b"b\n"

    def test_two_capsules_at_one_path(self) -> None:
        one, two = self.bench.new("one"), self.bench.new("two")
        self.bench.sh(one, "echo one > who; echo one > deps/plain")
        self.bench.sh(two, "test ! -e who; echo two > who; grep -qx plain deps/plain")
        for capsule in (one, two):
            said = self.bench.sh(capsule, "pwd; cat who")
            assert said == f"{self.bench.root}\n{capsule.name}\n"
        self.bench.require_owner_untouched()

    def test_locks_hold_between_runs(self) -> None:
        """Both kinds, on a file of the base and on a new one."""
        capsule, bench = self.shared, self.bench
        holder = """
            held = []
            for path in ("data/locked", "locked"):
                for how in (fcntl.flock, fcntl.lockf):
                    held.append(open(path, "a+b"))
                    how(held[-1], fcntl.LOCK_EX)
            write("holding")
            while not os.path.exists("let-go"):
                time.sleep(0.01)
        """
        tester = """
            for path in ("data/locked", "locked"):
                for how in (fcntl.flock, fcntl.lockf):
                    with open(path, "r+b") as stream:
                        try:
                            how(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                            print("free", end=" ")
                        except BlockingIOError:
                            print("held", end=" ")
        """
        run = bench.start(capsule, holder)
        try:
            there = ("test", "-e", "holding")
            assert wait_until(lambda: capsule.run(there).exit_code == 0, timeout_s=20)
            assert bench.python(capsule, tester).split() == ["held"] * 4
        finally:
            bench.run(capsule, "touch", "let-go")
            capsule.wait(run, timeout_s=20)
        assert bench.python(capsule, tester).split() == ["free"] * 4

    def test_work_is_kept_when_the_capsule_goes(self) -> None:
        capsule = self.bench.new("kept")
        self.bench.sh(
            capsule,
            """
            echo committed > c; git add c; git commit -qm c
            echo staged > s; git add s; echo more >> README.md; echo untracked > 'u v'
            """,
        )
        work = capsule.work()
        assert (work.commits, sorted(work.uncommitted)) == (1, ["README.md", "s"])
        assert work.untracked == ("u v",)
        asked = ("git", "status", "--porcelain")
        status = self.bench.run(capsule, *asked)
        point = capsule.remove(force=True)
        assert point is not None
        again = self.bench.project.recover(point, "kept-again")
        assert self.bench.run(again, *asked) == status
        assert self.bench.run(again, "cat", "c", "s", "u v") == "committed\nstaged\nuntracked\n"

    def test_what_git_cannot_store_is_kept_as_files(self) -> None:
        capsule = self.bench.new("nested")
        self.bench.sh(
            capsule,
            """
            mv moving/program moving/elsewhere; rm -r moving/git
            mkdir -p vendor/lib; cd vendor/lib; git init -q; echo code > code.c
            git add code.c; git commit -qm nested
            """,
        )
        assert capsule.work().nested == ("vendor/lib/",)
        point = capsule.remove(force=True)
        assert point is not None
        assert point.files is not None
        found = {path.name: path.read_text() for path in Path(point.files).rglob("code.c")}
        assert found == {"code.c": "code\n"}
        assert any("elsewhere" in path.parts for path in Path(point.files).rglob("*"))

    def test_work_behind_a_closed_door_is_kept(self) -> None:
        """Git itself passes over a directory that it may not open."""
        self.require_kept("closed", "mkdir door; echo precious > door/f; chmod 000 door", "door/f")

    def test_file_that_cannot_be_read_is_kept(self) -> None:
        self.require_kept("sealed", "echo precious > sealed; chmod 000 sealed", "sealed")

    def require_kept(self, name: str, script: str, path: str) -> None:
        """What is removed by force comes back, by git or as a file."""
        capsule = self.bench.new(name)
        self.bench.sh(capsule, script)
        assert capsule.work().any
        point = capsule.remove(force=True)
        assert point is not None
        if point.files is None:
            again = self.bench.project.recover(point, f"{name}-again")
            assert self.bench.sh(again, f"cat {path}") == "precious\n"
            return
        place = next(Path(point.files).rglob(path.partition("/")[0]))
        place.chmod(0o700)
        found = place / path.partition("/")[2] if "/" in path else place
        assert found.read_text() == "precious\n"

    def test_nothing_is_left_of_a_removed_capsule(self) -> None:
        capsule = self.bench.new("traceless")
        plan = self.plan_of(capsule)
        self.bench.sh(
            capsule,
            """
            mkdir -p a/b/c build/d; echo f > a/b/c/f; ln -s / a/link; mkfifo a/fifo
            echo x > build/d/f; chmod 000 a/b/c a/b build/d "$HOME"
            chmod 000 build
            """,
        )
        capsule.remove(force=True)
        upkeep.work(self.bench.session)
        assert plan.upper not in self.layers()
        trash = self.bench.home / "trash"
        assert not trash.exists() or list(trash.iterdir()) == []
        assert not Path(capsule.record.directory).exists()


class OwnerSuite(BenchSuite):
    """The owner goes on working: what capsules see of that, and when."""

    def test_changes_of_the_owner_do_not_shine_through(self) -> None:
        with self.own_bench("shine") as bench:
            old = bench.new("old")
            write_files(bench.root, {"README.md": b"edited\n", "new": b"n", "deps/plain": b"d"})
            (bench.root / "data" / "blob.bin").unlink()
            said = bench.sh(old, "cat deps/plain; git status --porcelain; ls data | grep blob")
            assert said == "plain\nblob.bin\n"
            self.require_new(bench, old)

    def require_new(self, bench: Bench, old: Capsule) -> None:
        """A new capsule has what was committed and what is ignored; with `dirty` the rest, too."""
        # Only a walk notices that a file was changed in place; `warm` is the verb for it.
        bench.project.warm()
        plain, dirty = bench.new("plain"), bench.new("dirty", dirty=True)
        assert bench.sh(plain, "cat deps/plain; git status --porcelain") == "d"
        said = bench.sh(dirty, "cat README.md deps/plain; echo; git status --porcelain")
        assert said == "edited\nd\n M README.md\n D data/blob.bin\n?? new\n"
        assert bench.run(old, "cat", "deps/plain") == "plain\n"

    def test_new_capsules_follow_the_owner(self) -> None:
        with self.own_bench("follow") as bench:
            bench.new("first")
            for number in range(3):
                write_files(
                    bench.root,
                    {
                        f"new-{number}": b"n",
                        "src/calc.py": b"%d\n" % number,
                        "deps/n": b"%d" % number,
                    },
                )
                (bench.root / "deps" / "many" / f"{number:04}").unlink()
                (bench.root / "moving" / "many-1" / "a").unlink(missing_ok=True)
                commit_all(bench.root, f"commit {number}")
                capsule = bench.new(f"after-{number}")
                said = bench.sh(
                    capsule,
                    "git status --porcelain; ls -d new-*; cat src/calc.py deps/n; "
                    "ls deps/many | wc -l; test ! -e moving/many-1/a",
                )
                wanted = [*(f"new-{n}" for n in range(number + 1)), *[str(number)] * 2]
                assert said.replace("\n", " ").split() == [
                    *wanted[:-1], f"{number}{199 - number}",
                ]  # fmt: skip

    def test_settings_of_the_owner_are_not_rewritten(self) -> None:
        with self.own_bench("settings") as bench:
            before = (bench.root / ".git" / "config").stat()
            capsule = bench.new("exported")
            bench.sh(capsule, "echo x > x; git add x; git commit -qm x")
            capsule.remove(force=True)
            assert (bench.root / ".git" / "config").stat() == before

    def test_refs_of_the_owner_are_as_before(self) -> None:
        with self.own_bench("refs") as bench:
            asked = ("for-each-ref", "--format=%(objectname) %(refname)")
            before = git.git(*asked, cwd=str(bench.root)).text
            capsule = bench.new("gone")
            bench.sh(capsule, "git switch -qc side; git tag t")
            capsule.remove()
            upkeep.work(bench.session)
            after = git.git(*asked, cwd=str(bench.root)).text.splitlines()
            assert [
                line for line in after if " refs/atoll/pins/" not in line
            ] == before.splitlines()

    def test_odd_places(self) -> None:
        """Characters that mean something to mount options, paths in lists, shells and git."""
        with self.own_bench("p" + _ODD, home="h" + _ODD) as bench:
            capsule = bench.new("odd")
            bench.sh(capsule, 'test -z "$(git status --porcelain)"; echo x > x; git add x')
            bench.sh(capsule, "git commit -qm x; git fsck --full")
            assert git.find_ref("refs/heads/atoll/odd", cwd=str(bench.root)) is not None
            snapshot = capsule.snapshot("odd")
            bench.sh(capsule, "rm x")
            capsule.rollback(snapshot)
            bench.sh(bench.project.fork(capsule, "odd-fork"), "test -e x; git stash -q")
            bench.require_owner_untouched()

    def test_git_mv_in_odd_places(self) -> None:
        # No colon in the home: what comes first in the path could not be named with one.
        odd = _ODD.replace(":", "")
        with self.own_bench(f"m{odd}", home=f"h{odd}") as bench:
            bench.sh(bench.new("odd"), "git mv moving/git moving/moved; test -e moving/moved/sub/b")


class LayeredSuite(
    ContractSuite, OwnerSuite, FilesSuite, GitMvSuite, PrivateGitSuite, MomentsSuite
):
    """All of it."""
