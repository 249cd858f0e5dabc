"""Time travel: what must hold of snapshots, rollbacks and forks, whatever makes them."""
# ruff: noqa: S101 - a test method says what must hold with `assert`

from __future__ import annotations

from atoll.engine.capsules import Capsule
from atoll.engine.history import upkeep
from atoll.host.process import wait_until
from atoll.testing.conformance.bench import BenchSuite

_PLACES = ("state", "$HOME/state", "$TMPDIR/state", "deps/plain", "README.md")
"""In the workspace, in both private places, carried and tracked."""

_ODDITIES = """
    os.mkdir("odd"); os.chdir("odd")
    write("sealed", b"sealed"); os.chmod("sealed", 0o000)
    write("program", b"#!/bin/true\\n"); os.chmod("program", 0o111)
    write("closed/inner/file", b"closed"); os.chmod("closed/inner", 0o000)
    os.chmod("closed", 0o000)
    write("one", b"1"); os.link("one", "two")
    os.mkfifo("fifo"); socket.socket(socket.AF_UNIX).bind("socket")
    os.symlink("nowhere", "dangling")
    with open("sparse", "wb") as stream:
        stream.truncate(32 << 20)
    write("marked"); os.setxattr("marked", "user.mark", b"m"); os.utime("marked", ns=(5, 7))
    os.mkdir("empty"); os.mkdir("shared"); os.chmod("shared", 0o2770)
    write("line\\nbreak"); write(b"\\xff"); write("n" * 255)
    os.chdir(".."); shutil.rmtree("deps/many"); os.mkdir("deps/many"); write("deps/many/only")
    os.unlink("data/replaced"); shutil.move("moving/plain", "moving/renamed")
"""
_ODDITIES_STAND = """
    os.chdir("odd")
    def mode(path):
        return oct(stat.S_IMODE(os.lstat(path).st_mode))
    assert (mode("sealed"), mode("program"), mode("closed")) == ("0o0", "0o111", "0o0")
    os.chmod("closed", 0o700); assert mode("closed/inner") == "0o0"
    os.chmod("closed/inner", 0o700); assert read("closed/inner/file") == b"closed"
    os.chmod("sealed", 0o600); assert read("sealed") == b"sealed"
    assert os.path.samefile("one", "two") and os.stat("one").st_nlink == 2
    assert os.readlink("dangling") == "nowhere"
    assert os.stat("sparse").st_size == 32 << 20 and os.stat("sparse").st_blocks * 512 < 1 << 20
    assert os.getxattr("marked", "user.mark") == b"m" and os.stat("marked").st_mtime_ns == 7
    assert os.listdir("empty") == [] and mode("shared") == "0o2770"
    assert {b"line\\nbreak", b"\\xff", b"n" * 255} <= set(os.listdir(b"."))
    os.chdir(".."); assert os.listdir("deps/many") == ["only"]
    assert not os.path.exists("data/replaced") and not os.path.exists("moving/plain")
    assert names("moving/renamed") == ["a", "sub", "sub/b", "sub/deeper", "sub/deeper/c"]
    assert git("status", "--porcelain", "--", "data").split() == ["D", "data/replaced"]
"""

_WRITER = """
    for number in range(300):
        write(f"busy/{number:03}", bytes(8192))
    # Out of reach of a check that looks only at the command's own children.
    if os.fork():
        while True:
            time.sleep(1)
    os.setsid()
    places = [os.environ["TMPDIR"] + "/third", os.environ["HOME"] + "/second", "busy/first"]
    files = [os.open(place, os.O_RDWR | os.O_CREAT) for place in places]
    number = 0
    while True:
        number += 1
        for file in files:
            os.pwrite(file, b"%020d" % number, 0)
"""
"""At every moment the third is as far as the second or one ahead, and so on."""


class MomentsSuite(BenchSuite):
    def set_state(self, capsule: Capsule, word: str) -> None:
        script = "; ".join(f'echo {word} > "{place}"' for place in _PLACES)
        self.bench.sh(capsule, f"{script}; git commit -qm {word} README.md; git tag -f at-{word}")

    def require_state(self, capsule: Capsule, word: str) -> None:
        shown = " ".join(f'"{place}"' for place in _PLACES)
        said = self.bench.sh(capsule, f"cat {shown}; git log -1 --format=%s; git status -s README*")
        assert said.split() == [word] * (len(_PLACES) + 1)
        fsck = self.bench.sh(capsule, "git fsck --full --no-dangling --no-progress 2>&1")
        assert fsck == ""

    def test_back_and_forth(self) -> None:
        capsule = self.bench.new("travel")
        self.set_state(capsule, "one")
        first = capsule.snapshot("first")
        self.set_state(capsule, "two")
        self.bench.sh(capsule, "mkdir later; touch later/file; rm -r src")
        capsule.rollback(first)
        self.require_state(capsule, "one")
        self.bench.sh(capsule, "test ! -e later; test -f src/calc.py")
        undo = capsule.snapshots()[-1]
        capsule.rollback(undo)
        self.require_state(capsule, "two")
        self.bench.sh(capsule, "test -f later/file; test ! -e src")
        capsule.rollback(first)
        self.require_state(capsule, "one")
        self.bench.require_owner_untouched()

    def test_snapshot_changes_nothing(self) -> None:
        capsule = self.bench.new("still")
        self.set_state(capsule, "one")
        look = "find . -path ./.git -prune -o -printf '%p %m %s %T@ %l\\n' | sort"
        before = self.bench.sh(capsule, look)
        for number in range(3):
            capsule.snapshot(f"snapshot {number}")
            assert self.bench.sh(capsule, look) == before
        self.require_state(capsule, "one")

    def test_branch_goes_back_and_is_exported_again(self) -> None:
        capsule = self.bench.new("branchy")
        first = capsule.snapshot("first")
        self.set_state(capsule, "one")
        capsule.rollback(first)
        self.set_state(capsule, "two")
        tip = self.bench.run(capsule, "git", "rev-parse", "HEAD").strip()
        assert capsule.export().commit == tip
        assert self.bench.warnings == []

    def test_forks_go_their_own_ways(self) -> None:
        capsule = self.bench.new("origin")
        self.set_state(capsule, "one")
        first = capsule.snapshot("first")
        self.set_state(capsule, "two")
        now = self.bench.project.fork(capsule, "fork-now")
        then = self.bench.project.fork(capsule, "fork-then", at=first)
        self.require_state(now, "two")
        self.require_state(then, "one")
        self.set_state(then, "three")
        self.require_state(capsule, "two")
        self.require_state(now, "two")
        for made in (now, then):
            said = self.bench.run(
                made, "git", "branch", "--format=%(refname:short)", "--list", "a*"
            )
            assert said.split() == [f"atoll/{made.name}"]
        again = self.bench.project.fork(then, "fork-again")
        capsule.remove(force=True)
        then.remove(force=True)
        upkeep.work(self.bench.session)
        self.require_state(again, "three")
        self.require_state(now, "two")

    def test_entries_of_every_kind_stand(self) -> None:
        capsule = self.bench.new("kinds")
        self.bench.python(capsule, _ODDITIES)
        first = capsule.snapshot("first")
        fork = self.bench.project.fork(capsule, "kinds-fork")
        self.bench.python(fork, _ODDITIES_STAND)
        self.bench.sh(capsule, "chmod 700 odd/closed odd/closed/inner; rm -rf odd moving")
        capsule.rollback(first)
        self.bench.python(capsule, _ODDITIES_STAND)

    def test_entries_of_every_kind_stand_while_something_runs(self) -> None:
        capsule = self.bench.new("busy-kinds")
        self.bench.python(capsule, _ODDITIES)
        run = self.bench.start(capsule, "while True: time.sleep(1)")
        try:
            first = capsule.snapshot("first")
        finally:
            capsule.stop(run)
        fork = self.bench.project.fork(capsule, "busy-kinds-fork", at=first)
        self.bench.python(fork, _ODDITIES_STAND)

    def test_running_capsule_is_caught_in_one_moment(self) -> None:
        capsule = self.bench.new("busy")
        run = self.bench.start(capsule, _WRITER)
        try:
            begun = ("test", "-s", "busy/first")
            assert wait_until(lambda: capsule.run(begun).exit_code == 0, timeout_s=30)
            made = []
            for number in range(4):
                self._await_writer(capsule)
                made.append(capsule.snapshot(f"busy {number}"))
            assert capsule.run(begun).exit_code == 0
        finally:
            capsule.stop(run, grace_s=0.1)
        seen = []
        for snapshot in made:
            capsule.rollback(snapshot)
            script = 'cat "$TMPDIR/third"; echo; cat "$HOME/second"; echo; cat busy/first'
            third, second, first = map(int, self.bench.sh(capsule, script).split())
            assert third >= second >= first >= third - 1, (third, second, first)
            seen.append(first)
        assert seen == sorted(set(seen)), "nothing was written between the snapshots"

    def _await_writer(self, capsule: Capsule) -> None:
        """Returns once the writer has written again: on a busy machine it may wait for its turn."""
        before = int(self.bench.run(capsule, "cat", "busy/first"))
        assert wait_until(
            lambda: int(self.bench.run(capsule, "cat", "busy/first")) > before, timeout_s=30
        )

    def test_writer_goes_on_after_a_snapshot(self) -> None:
        capsule = self.bench.new("goes-on")
        run = self.bench.start(capsule, _WRITER)
        try:
            begun = ("test", "-s", "busy/first")
            assert wait_until(lambda: capsule.run(begun).exit_code == 0, timeout_s=30)
            capsule.snapshot("busy")
            self._await_writer(capsule)
        finally:
            capsule.stop(run, grace_s=0.1)
