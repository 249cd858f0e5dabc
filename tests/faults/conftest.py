"""Worlds for crashes: a project with capsules of level `clone`, many commands, disks to lose."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from atoll.cli import app
from atoll.engine.projects import open_project
from atoll.host.process import wait_until
from atoll.testing.disks import KINDS, Disk, require_no_loops, unseen
from atoll.testing.faults import KILLED, kill_at
from atoll.testing.remains import (
    checkout_digest,
    differences,
    find_remains,
    keepers_of,
    portrait,
    runs_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from atoll.engine.capsules import Capsule
    from atoll.testing.remains import Portrait

DEADLINE_S = 240
WAIT_S = 60
WORK = """
set -e
echo committed > committed.txt; git add .; git commit -qm agent
git mv src lib; echo staged > app.py; git add app.py; echo changed > app.py
git stash -q; git stash apply -q --index; git branch side
rm README.md; mkdir 'new dir' empty; printf '\\0\\377' > 'new dir/untracked'
printf '#!/bin/sh\\n' > 'new dir/tool'; chmod 755 'new dir/tool'; ln -s nowhere link
ln 'new dir/tool' hardlink; echo mine > build/own; rm -f build/carried
echo private > "$HOME/private"; mkdir "$TMPDIR/scratch"; echo scratch > "$TMPDIR/scratch/file"
"""
"""Leaves work of every kind in a capsule."""


class Answer(NamedTuple):
    code: int
    said: str
    told: str


class Clones:
    """One project in one Atoll home, and what can be asked of both."""

    WORK = WORK

    def __init__(self, home: Path, repo: Path, git: Callable[..., str]) -> None:
        self.home, self.repo, self._git = home, repo, git
        self.tmp = repo.parent / "tmp"
        self.refs = set(self.git("for-each-ref", "--format=%(refname)").split())
        self.known: Any = None
        """What a scenario has found out once and for all."""
        self.know()

    def know(self) -> None:
        """From now on the owner's checkout is as it is now."""
        self.digest = checkout_digest(self.repo)

    def try_atoll(self, *args: str) -> Answer:
        """Runs a command line to its end, in this process: only what is killed needs its own."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = app.run([args[0], "--project", str(self.repo), *args[1:]])
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return Answer(code, *(text.buffer.getvalue().decode() for text in (out, err)))

    def atoll(self, *args: str) -> str:
        done = self.try_atoll(*args)
        assert done.code == 0, f"atoll {args} exited with {done.code}\n{done.said}{done.told}"
        return done.said

    def stop_daemon(self) -> None:
        """The next command that needs one starts another."""
        if "ATOLL_DAEMON" not in os.environ:
            self.atoll("daemon", "stop")

    def git(self, *args: str) -> str:
        return self._git(*args, cwd=self.repo)

    def ask(self, *args: str) -> Any:
        return json.loads(self.atoll(*args, "--json"))["data"]

    def names(self) -> set[str]:
        """The capsules that `ls` shows; it must show no others than ready ones."""
        done = self.try_atoll("ls", "--json")
        assert done.code == 0, done
        found = json.loads(done.said)["data"]
        assert {capsule["state"] for capsule in found} <= {"ready"}, (done.told, found)
        return {capsule["name"] for capsule in found}

    def points(self) -> list[str]:
        return [point["id"] for point in self.ask("recover")]

    def drop_points(self) -> None:
        for point in self.points():
            self.atoll("recover", point, "--drop")

    def snapshots(self, name: str = "x") -> list[int]:
        return [one.number for one in self.capsule(name).snapshots()]

    def tip(self, name: str = "x") -> str:
        """Where the exported branch stands; empty when there is none."""
        ref = f"refs/heads/atoll/{name}"
        return self.git("for-each-ref", "--format=%(objectname)", ref).strip()

    def capsule(self, name: str = "x") -> Capsule:
        return open_project(self.repo).capsule(name)

    def sh(self, script: str, name: str = "x") -> str:
        done = self.capsule(name).run(["sh", "-c", script])
        assert done.exit_code == 0, done.stderr.decode()
        return done.stdout.decode()

    def states(self) -> set[str]:
        """In which states the processes of runs are, as the kernel says."""
        found = set()
        for pid in runs_of(self.home):
            with contextlib.suppress(OSError):
                found.add(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
        return found

    def wait_for(self, predicate: Callable[[], object], *, what: str) -> None:
        assert wait_until(lambda: bool(predicate()), timeout_s=WAIT_S), (
            f"{what}: not within {WAIT_S} s"
        )

    def portrait(self, name: str = "x") -> Portrait:
        return portrait(self.capsule(name))

    def require(self, *allowed: Portrait, name: str = "x", point: str = "") -> None:
        """The capsule is exactly as one of these."""
        found = self.portrait(name)
        assert found in allowed, (point, [differences(one, found) for one in allowed])

    def die(self, point: str, *argv: str) -> bool:
        """Whether the verb got as far as `point`. One that did not must have done its job."""
        done = kill_at(point, argv, cwd=self.repo)
        assert done.code in (KILLED, 0), (point, done.stderr.decode())
        return done.code == KILLED

    def check(self, point: str, *, exported: Collection[str] = ("x", "y")) -> set[str]:
        """`ls` is true, `gc` leaves nothing, the owner's own is untouched, all layers are whole.

        Returns the capsules. Branches of those in `exported` may be there or not.
        """
        names = self.names()
        self.atoll("gc")
        self.atoll("warm", "--check")
        wanted = self.refs | {f"refs/atoll/recovery/{point}" for point in self.points()}
        there = set(self.git("for-each-ref", "--format=%(refname)", "refs/heads/atoll").split())
        branches = {f"refs/heads/atoll/{name}" for name in exported if name in names}
        # Sessions of commands that ran in this process hold their fork servers until they go.
        gc.collect()

        def find_left() -> list[str]:
            left = find_remains(self.home, self.repo, refs=wanted | (there & branches))
            return left + [f"temporary file {path}" for path in self.tmp.iterdir()]

        # The daemon may be freezing the base right now: its layers are in use when it is done. That
        # has the lowest priority, so it takes long on a busy machine.
        wait_until(lambda: not find_left(), timeout_s=120)
        left = find_left()
        assert left == [], point
        assert checkout_digest(self.repo) == self.digest, point
        return names

    def clear(self, point: str = "") -> None:
        """Removes everything, and makes sure that there is nothing more."""
        names = self.names()
        if names:
            self.atoll("rm", *names, "--force")
        self.drop_points()
        assert self.check(point) == set()
        gc.collect()
        assert wait_until(lambda: not keepers_of(self.home), timeout_s=10), point


@pytest.fixture
def make_project(git: Callable[..., str]) -> Callable[[Path], None]:
    """`make_project(path)`: a repository anywhere, with what git ignores and a capsule carries."""

    def make(root: Path) -> None:
        (root / "src").mkdir(parents=True)
        (root / ".gitignore").write_text("build/\n")
        for name in ("README.md", "app.py", "src/calc.py"):
            (root / name).write_text(f"{name}\n")
        git("init", "--quiet", cwd=root)
        git("add", "--all", cwd=root)
        git("commit", "--quiet", "--message", "first", cwd=root)
        fill_project(root)

    return make


def fill_project(repo: Path) -> None:
    """Adds what git ignores and a capsule carries."""
    (repo / "build").mkdir()
    (repo / "build" / "carried").write_text("dependency\n")
    (repo / "build" / "link").symlink_to("carried")


@pytest.fixture
def clones(
    request: pytest.FixtureRequest,
    atoll_home: Path,
    repo: Path,
    git: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Clones]:
    """A project whose carried directory is `build`: at level `clone` and without a daemon, or, with
    the parameter "default", with the settings that everyone has: level `sandbox` and a daemon.
    """
    is_default = getattr(request, "param", "clone") == "default"
    if is_default:
        monkeypatch.delenv("ATOLL_LEVEL")
        monkeypatch.delenv("ATOLL_DAEMON")
    else:
        monkeypatch.setenv("ATOLL_LEVEL", "clone")
    fill_project(repo)
    clones = Clones(atoll_home, repo, git)
    clones.tmp.mkdir()
    monkeypatch.setenv("TMPDIR", str(clones.tmp))
    try:
        yield clones
    finally:
        clones.stop_daemon()
        end_all(atoll_home)


def end_all(home: Path) -> None:
    """As a crash of the machine does; and what a failed test has left must not outlive it."""
    gc.collect()
    for pid in [*runs_of(home), *(keeper.pid for keeper in keepers_of(home))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not [*runs_of(home), *keepers_of(home)], timeout_s=10)


# Many commands


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str

    @property
    def is_clean(self) -> bool:
        """It said what was wrong in words of its own."""
        return self.code == 4 and self.stderr.startswith("error: ") and "bug" not in self.stderr


@pytest.fixture
def at_once(atoll_home: Path, repo: Path, tmp_path: Path) -> Callable[..., list[Done]]:
    """`at_once(["new", "a"], ["new", "b"])`: real processes that all begin at the same moment.

    Each waits, with its interpreter started, until the last one is there.
    """
    program = (
        "import os, runpy, sys; os.read(int(sys.argv[1]), 1); sys.argv[:2] = ['atoll']; "
        "runpy.run_module('atoll', run_name='__main__', alter_sys=True)"
    )

    def run(*commands: Sequence[str], cwd: Path = repo) -> list[Done]:
        gate, opener = os.pipe()
        with contextlib.ExitStack() as stack:
            children = []
            for number, command in enumerate(commands):
                # Files, not pipes: nobody has to read along while fifty talk.
                out, err = (
                    stack.enter_context((tmp_path / f"{stream}-{number}").open("w+"))
                    for stream in ("out", "err")
                )
                child = subprocess.Popen(
                    [sys.executable, "-c", program, str(gate), *command],
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    pass_fds=(gate,),
                )
                stack.callback(child.kill)
                children.append((child, out, err))
            os.close(gate)
            # Closing the other end wakes all who wait.
            os.close(opener)
            found = []
            for child, out, err in children:
                code = child.wait(timeout=DEADLINE_S)
                out.seek(0)
                err.seek(0)
                found.append(Done(code, out.read(), err.read()))
        return found

    return run


# Disks


@pytest.fixture
def clones_on_disk(
    atoll_home: Path,
    make_disk: Callable[..., Disk],
    make_project: Callable[[Path], None],
    git: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[int], contextlib.AbstractContextManager[Clones]]:
    """`with clones_on_disk(40 << 20) as clones`: project and home on a filesystem of this size."""
    monkeypatch.setenv("ATOLL_LEVEL", "clone")

    @contextlib.contextmanager
    def open_disk(size_bytes: int) -> Iterator[Clones]:
        disk = make_disk("ext4", size_bytes)
        monkeypatch.setenv("ATOLL_HOME", str(disk.home))
        with disk.mounted():
            make_project(disk.repo)
            clones = Clones(disk.home, disk.repo, git)
            clones.tmp.mkdir()
            monkeypatch.setenv("TMPDIR", str(clones.tmp))
            yield clones

    return open_disk


@pytest.fixture
def make_disk(require_tool: Callable[[str], str]) -> Iterator[Callable[[str, int], Disk]]:
    """`make_disk("ext4")`: a filesystem to lose, in memory where there is a place for that."""
    if os.geteuid() != 0:
        pytest.skip("mounting a filesystem in a file needs root")
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    places: list[Path] = []

    def make(name: str, size_bytes: int = 0) -> Disk:
        require_tool(KINDS[name].make[0])
        places.append(Path(tempfile.mkdtemp(prefix="atoll-disk-", dir=memory)))
        kind = KINDS[name]
        kind = kind._replace(size_bytes=size_bytes or kind.size_bytes)
        return Disk(kind, places[-1], end_all)

    with unseen():
        yield make
    try:
        for place in places:
            require_no_loops(place)
    finally:
        for place in places:
            shutil.rmtree(place, ignore_errors=True)
