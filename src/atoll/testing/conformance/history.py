"""What git does in a workspace with a repository of its own: tried inside, by git itself."""
# ruff: noqa: S101 - a test method says what must hold with `assert`

from __future__ import annotations

import json
from pathlib import Path

from atoll.engine.capsules import Capsule
from atoll.host import git
from atoll.host.programs import find_program
from atoll.testing.conformance.bench import TRACKED, BenchSuite
from atoll.testing.conformance.workspace import IDENTITY

_STATUS = """
    import re
    tracked = set(git("ls-files", "-z").split("\\0"))
    def opened():
        trace = os.environ["TMPDIR"] + "/trace"
        calls = "trace=open,openat,openat2"
        subprocess.run(["strace", "-f", "-e", calls, "-o", trace, "git", "status"], check=True,
                       stdout=subprocess.DEVNULL)
        found = re.findall(r'open(?:at2?)?\\([^"]*"([^"]*)"', read(trace).decode())
        paths = {os.path.relpath(name, os.getcwd()) for name in found}
        # Rules for git itself are read each time, in the owner's checkout, too.
        return sorted(p for p in paths & tracked if os.path.basename(p) != ".gitignore")
    print(len(opened()))
    os.utime("README.md", ns=(1, 1))
    assert opened() == ["README.md"], "a file that was touched has to be seen"
    print(len(opened()))
"""
"""Prints how many tracked files the first `git status` opens, and a later one."""


def require_tool(name: str) -> None:
    if find_program(name) is None:
        import pytest  # noqa: PLC0415 - needed only by those who run the suites

        pytest.skip(f"needs `{name}`, which is not installed")


class GitMvSuite(BenchSuite):
    """`git mv` of directories, which some kernels do not rename by themselves."""

    def moved(self, source: str, target: str, *words: str, cwd: str = ".") -> None:
        """Runs `git WORDS` inside, after which `source` must be `target` and nothing else."""
        self.inside(
            """
            source, target, cwd, *words = sys.argv[1:]
            git("reset", "--quiet")
            wanted = {n: os.lstat(f"{source}/{n}") for n in names(source)}
            beside = set(os.listdir("moving")) - {os.path.basename(source)}
            git(*words, cwd=cwd)
            assert not os.path.lexists(source), names(source)
            assert names(target) == sorted(wanted), names(target)
            for name, before in wanted.items():
                after = os.lstat(f"{target}/{name}")
                assert (before.st_mode, before.st_mtime_ns) == (after.st_mode, after.st_mtime_ns)
            assert set(os.listdir("moving")) - beside <= {os.path.basename(target)}
            staged = git("diff", "--cached", "-M", "--name-status", "-z", "--", source, target)
            assert staged.split("\\0")[:-1] == [
                word for file in ("a", "sub/b", "sub/deeper/c")
                for word in ("R100", f"{source}/{file}", f"{target}/{file}")
            ], staged
            """,
            source, target, cwd, *words,
        )  # fmt: skip

    def test_git_mv_of_a_directory(self) -> None:
        self.moved("moving/git", "moving/uno", "mv", "moving/git", "moving/uno")

    def test_git_mv_back_and_again(self) -> None:
        self.moved("moving/again", "moving/more", "mv", "moving/again", "moving/more")
        self.inside('git("mv", "moving/more", "moving/again")')
        self.moved("moving/again", "moving/more", "mv", "moving/again", "moving/more")

    def test_git_mv_of_a_nested_directory(self) -> None:
        self.inside("""
            git("mv", "moving/nested/sub/deeper", "moving/nested/up")
            assert names("moving/nested") == ["a", "sub", "sub/b", "up", "up/c"]
            git("mv", "moving/nested", "moving/nest")
            assert names("moving/nest") == ["a", "sub", "sub/b", "up", "up/c"]
            assert read("moving/nest/up/c") == b"nested sub/deeper/c\\n"
        """)

    def test_git_mv_seen_from_elsewhere(self) -> None:
        self.moved("moving/below", "moving/beneath", "-C", "moving", "mv", "below", "beneath")
        self.moved("moving/slashed", "moving/s", "mv", "slashed/", "s", cwd="moving")

    def test_git_mv_with_options(self) -> None:
        words = ("-c", "core.quotePath=false", "--no-pager", "mv", "-v", "-k", "--")
        self.moved("moving/optioned", "moving/o", *words, "moving/optioned", "moving/o")

    def test_git_mv_of_unusual_names(self) -> None:
        self.moved("moving/with  blanks", "moving/a  b", "mv", "moving/with  blanks", "moving/a  b")
        self.moved("moving/*", "moving/star", "mv", "moving/*", "moving/star")
        self.moved("moving/-k", "moving/k", "mv", "--", "-k", "k", cwd="moving")

    def test_git_mv_of_several_into_a_directory(self) -> None:
        self.inside("""
            git("mv", "moving/many-1", "moving/file", "moving/many-2", "moving/into")
            assert sorted(os.listdir("moving/into")) == ["file", "here", "many-1", "many-2"]
            for name in ("many-1", "many-2"):
                assert not os.path.exists(f"moving/{name}")
                assert read(f"moving/into/{name}/sub/b") == f"{name} sub/b\\n".encode()
        """)

    def test_git_mv_takes_all_that_is_in_it(self) -> None:
        self.inside("""
            write("moving/mixed/untracked"); write("moving/mixed/ignored.log")
            os.mkdir("moving/mixed/empty"); os.symlink("a", "moving/mixed/link")
            os.mkfifo("moving/mixed/fifo"); os.chmod("moving/mixed/sub", 0o500)
            wanted = names("moving/mixed")
            git("mv", "moving/mixed", "moving/m")
            assert names("moving/m") == wanted and not os.path.exists("moving/mixed")
            assert stat.S_IMODE(os.stat("moving/m/sub").st_mode) == 0o500
            assert read("moving/m/sub/deeper/c") == b"mixed sub/deeper/c\\n"
        """)

    def test_git_mv_that_only_says_what_it_would_do(self) -> None:
        self.inside("""
            def look():
                return {n: os.lstat(f"moving/{n}").st_ctime_ns for n in names("moving")}
            before = look()
            for flag in ("-n", "--dry-run", "-vn"):
                assert "dry" in git("mv", flag, "moving/dry", "moving/never")
                assert look() == before, flag
        """)

    def test_git_mv_that_is_refused_loses_nothing(self) -> None:
        self.inside("""
            wanted = names("moving/onto")
            git("mv", "moving/onto", "README.md", code=128)
            git("mv", "moving/onto", "no/such/place", code=128)
            git("mv", "moving/onto", "moving/missing", "moving/into", code=128)
            assert names("moving/onto") == wanted
            assert [n for n in os.listdir("moving") if n.startswith(".")] == []
            assert git("status", "--porcelain", "--", "moving/onto") == ""
        """)

    def test_wrapper_is_plain_shell(self) -> None:
        self.inside("""
            git_found = shutil.which("git")
            if b"ELF" not in read(git_found)[:4]:
                assert read(git_found).startswith(b"#!/bin/sh\\n")
                subprocess.run(["sh", "-n", git_found], check=True)
            assert git("--version").startswith("git version")
            git("no-such-verb", code=1)
        """)


class PrivateGitSuite(BenchSuite):
    """History is the owner's and complete; whatever is done to it here stays here."""

    def fsck(self, capsule: Capsule) -> None:
        said = self.bench.sh(capsule, "git fsck --full --no-dangling --no-progress 2>&1")
        assert said == "", said

    def fsck_owner(self) -> None:
        git.git("fsck", "--full", "--no-dangling", "--no-progress", cwd=str(self.bench.root))

    def test_first_status_opens_no_tracked_file(self) -> None:
        if self.level == "sandbox":
            return  # no process can be traced behind walls
        require_tool("strace")
        capsule = self.bench.new("status")
        fork = self.bench.project.fork(capsule, "status-fork")
        assert self.bench.python(capsule, _STATUS).split() == ["0", "0"]
        assert self.bench.python(fork, _STATUS).split() == ["0", "0"]

    def test_it_starts_clean_on_a_branch_of_its_own(self) -> None:
        capsule = self.bench.new("clean")
        said = self.bench.sh(capsule, "git status --porcelain --branch; git stash list")
        assert said == "## atoll/clean\n"
        self.fsck(capsule)

    def test_history_is_complete(self) -> None:
        asked = ("log", "--format=%H %an %s", "--name-status")
        wanted = git.git(*asked, cwd=str(self.bench.root)).text
        capsule = self.bench.new("history")
        assert self.bench.run(capsule, "git", *asked) == wanted
        blamed = self.bench.run(capsule, "git", "blame", "-s", "README.md")
        assert len({line.split()[0] for line in blamed.splitlines()}) == 2

    def test_bisect(self) -> None:
        capsule = self.bench.new("bisect")
        said = self.bench.sh(
            capsule,
            """
            for n in 1 2 3 4 5 6; do
                echo $n > number; git add number; git commit -qm "commit $n"
            done
            git bisect start HEAD HEAD~6
            git bisect run sh -c 'test ! -e number || test $(cat number) -lt 4'
            git bisect reset
            """,
        )
        assert "is the first bad commit" in said
        assert "commit 4" in said
        self.fsck(capsule)

    def test_stash_rebase_and_worktree(self) -> None:
        capsule = self.bench.new("verbs")
        self.bench.sh(
            capsule,
            """
            echo staged >> src/calc.py; git add src/calc.py; echo new > untracked
            git stash push -q --include-untracked
            test -z "$(git status --porcelain)"
            git stash pop -q --index
            test "$(git status --porcelain)" = "M  src/calc.py
?? untracked"
            git commit -qm one; git switch -qc side HEAD~1; echo s > side; git add side
            git commit -qm side; git rebase -q atoll/verbs
            test "$(git log --format=%s -2)" = "side
one"
            git worktree add -q -b tree "$TMPDIR/tree" main
            cd "$TMPDIR/tree"; echo t > t; git add t; git commit -qm tree
            git worktree list | grep -c tree
            """,
        )
        self.fsck(capsule)
        refs = dict(git.refs_below("refs/heads/", cwd=str(self.bench.root)))
        assert {"refs/heads/side", "refs/heads/tree"}.isdisjoint(refs)

    def test_hooks_of_the_owner_run_inside(self) -> None:
        capsule = self.bench.new("hooks")
        self.bench.sh(
            capsule, "echo h > h; git add h; git commit -qm h; grep -qx hooked .git/hooked"
        )
        assert not (self.bench.root / ".git" / "hooked").exists()

    def test_commits_arrive_as_the_branch(self) -> None:
        capsule = self.bench.new("arrive")
        tip = self.bench.sh(
            capsule, "echo a > a; git add a; git commit -qm a; git rev-parse HEAD"
        ).strip()
        assert git.find_ref("refs/heads/atoll/arrive", cwd=str(self.bench.root)) == tip
        self.fsck_owner()

    def test_owner_collects_and_the_capsule_has_all(self) -> None:
        with self.own_bench("gc") as bench:
            owner = str(bench.root)
            git.git("branch", "doomed", cwd=owner)
            git.git("tag", "-a", "-m", "noted", "annotated", "doomed", cwd=owner, env=IDENTITY)
            tip = git.git("log", "--format=%s", "-1", cwd=owner).text.split()
            capsule = bench.new("kept")
            git.git("branch", "-D", "doomed", cwd=owner)
            git.git("tag", "-d", "annotated", cwd=owner)
            git.git("reflog", "expire", "--expire=now", "--all", cwd=owner)
            git.git("gc", "--quiet", "--prune=now", "--aggressive", cwd=owner)
            said = bench.sh(
                capsule,
                """
                git log --format=%s -1 doomed; git cat-file tag annotated | tail -1
                git log --oneline | wc -l; echo n > n; git add n; git commit -qm n
                """,
            )
            assert said.split() == [*tip, "noted", "2"]
            self.fsck(capsule)

    def test_capsule_collects_and_the_owner_has_all(self) -> None:
        capsule = self.bench.new("collector")
        objects = sorted(Path(self.bench.root, ".git", "objects").rglob("*"))
        self.bench.sh(
            capsule,
            "echo c > c; git add c; git reflog expire --expire=now --all; git gc -q --prune=now",
        )
        self.fsck(capsule)
        for path in objects:
            assert path.exists(), path
        self.bench.sh(
            capsule,
            """
            shared=$(cat .git/objects/info/alternates)
            ! rm -rf "$shared"/* 2> /dev/null
            ! touch "$shared/new" 2> /dev/null
            """,
        )
        for path in objects:
            assert path.exists(), path
        self.fsck_owner()
        self.bench.require_owner_untouched()

    def test_capsule_destroys_its_objects_and_the_owner_has_all(self) -> None:
        with self.own_bench("destroyed") as bench:
            capsule = bench.new("destroyer")
            bench.sh(capsule, "echo precious > new; rm -rf .git/objects/*")
            git.git("fsck", "--full", "--no-dangling", cwd=str(bench.root))
            bench.require_owner_untouched()
            point = capsule.remove(force=True)
            assert point is not None
            kept = git.git("show", f"{point.commit}:new", cwd=str(bench.root)).stdout
            assert kept == b"precious\n"

    def test_all_tracked_files_are_there(self) -> None:
        capsule = self.bench.new("all")
        self.bench.python(
            capsule,
            """
            listed = set(git("ls-files", "-z").split("\\0")) - {""}
            assert listed == {*json.loads(sys.argv[1]), "src/link", "absolute"}, listed
            for path in listed:
                assert os.path.lexists(path), path
            """,
            json.dumps(sorted(TRACKED)),
        )
