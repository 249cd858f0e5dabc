"""A project with everything in it that programs rely on, and capsules of it to try that in.

A suite shares one project and one capsule among its tests: each works in a directory of its own,
and after each the owner's checkout must be what it was.
"""
# ruff: noqa: S101 - a test method says what must hold with `assert`

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from textwrap import dedent
from typing import ClassVar, NamedTuple

from atoll.engine.capsules import Capsule
from atoll.engine.enclosure import cgroup_limits, views
from atoll.engine.projects import CapsuleSpec, Project, open_project
from atoll.engine.run.runs import RunSpec
from atoll.engine.state.session import Session
from atoll.host import files, git
from atoll.model.errors import AtollError
from atoll.model.state import Run
from atoll.testing.conformance.workspace import IDENTITY, write_files

LONGEST = "n" * 255
ODD_NAMES = (b"line\nbreak", b"\xff\xfe caf\xe9", b"tab\there", b"-n", b"*", b"'\"\\", b" ")
DEEP = "/".join(["d" * 200] * 17)
"""Below a short root this is nearly as long as a path can be."""

TRACKED: dict[str, bytes] = {
    ".gitignore": b"deps/\ncache/\nbuild/\n*.log\n",
    "README.md": b"# Sample\n",
    "src/calc.py": b"def add(a, b):\n    return a + b\n",
    "data/blob.bin": bytes(range(256)) * 64,
    **{
        f"data/{name}": f"{name}\n".encode()
        for name in (
            *("replaced", "linked", "open", "attributed", "moded", "appended", "steady", "locked"),
            *("reserved", "mapped", "watched"),
        )
    },
    "with space/\xe9t\xe9.txt": b"summer\n",
    "Case": b"upper\n",
    "case": b"lower\n",
    "gone/by/dir": b"a file in a directory\n",
    "gone/file": b"a file\n",
    "tool": b"#!/bin/sh\necho tool\n",
    **{
        f"moving/{name}/{file}": f"{name} {file}\n".encode()
        for name in (
            *("plain", "program", "git", "below", "-k", "many-1", "many-2", "dry", "slashed"),
            *("optioned", "onto", "with  blanks", "mixed", "again", "nested", "*"),
        )
        for file in ("a", "sub/b", "sub/deeper/c")
    },
    "moving/file": b"file\n",
    "moving/into/here": b"here\n",
}
OLD_NS = 1_600_000_000_123_456_789
"""When the owner's files were last changed: to the nanosecond, as build tools compare it."""

_HOOK = b'#!/bin/sh\necho hooked >> "$(git rev-parse --git-common-dir)/hooked"\n'
_PRELUDE = """\
import ctypes, errno, fcntl, json, mmap, os, select, shutil, socket, stat, struct, subprocess, sys
import tempfile, threading, time

def read(path):
    with open(path, "rb") as stream:
        return stream.read()

def write(path, content=b"new", how="wb"):
    if os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, how) as stream:
        stream.write(content)
    return path

def git(*args, code=0, cwd=None):
    done = subprocess.run(["git", *args], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
    return done.stdout

def names(path):
    return sorted(os.path.relpath(os.path.join(d, n), path)
                  for d, ds, fs in os.walk(path) for n in (*ds, *fs))

def refused(number, call, *args):
    try:
        call(*args)
    except OSError as error:
        assert error.errno == number, error
    else:
        raise AssertionError(f"{call} was not refused")
"""


def plant_project(root: Path) -> None:
    """A repository of TRACKED, and ignored files of every kind."""
    write_files(root, TRACKED)
    (root / "tool").chmod(0o755)
    os.symlink("../README.md", root / "src" / "link")
    os.symlink(root / "src", root / "absolute")
    plant_ignored(root)
    git.git("init", "--quiet", "--initial-branch=main", ".", cwd=str(root))
    write_files(root / ".git", {"hooks/pre-commit": _HOOK})
    (root / ".git" / "hooks" / "pre-commit").chmod(0o755)
    commit_all(root, "first")
    # A second one, so that there is a history to ask about.
    write_files(root, {"README.md": b"# Sample\n\nWith more.\n"})
    commit_all(root, "second")
    for number, path in enumerate(sorted(root.rglob("*"))):
        if ".git" not in path.parts:
            times = (OLD_NS + number, OLD_NS + number)
            os.utime(path, ns=times, follow_symlinks=False)
    git.git("update-index", "-q", "--refresh", cwd=str(root))


def commit_all(root: Path, message: str) -> None:
    git.git("add", "--all", cwd=str(root))
    git.git("commit", "--quiet", "-m", message, cwd=str(root), env=IDENTITY)


def plant_ignored(root: Path) -> None:
    deps = root / "deps"
    write_files(
        deps,
        {
            "plain": b"plain\n",
            "hard/one": b"hard\n",
            "modes/private": b"private\n",
            "modes/program": b"#!/bin/sh\necho program\n",
            "modes/sealed": b"#!/bin/sh\n",
            "sparse": b"",
            "marked": b"marked\n",
            f"long/{LONGEST}": b"long\n",
            **{f"many/{number:04}": b"" for number in range(200)},
        },
    )
    write_files(root, {"src/trace.log": b"log\n", f"cache/{DEEP}/end": b"deep\n"})
    os.link(deps / "hard" / "one", deps / "hard" / "two")
    for name, mode in {"private": 0o400, "program": 0o555, "sealed": 0o111}.items():
        (deps / "modes" / name).chmod(mode)
    (deps / "modes" / "shared").mkdir()
    (deps / "modes" / "shared").chmod(0o2775)
    (deps / "empty" / "inner").mkdir(parents=True)
    with (deps / "sparse").open("r+b") as stream:
        stream.seek(16 << 20)
        stream.write(b"end")
    os.setxattr(deps / "marked", "user.atoll", b"mark")
    os.symlink("plain", deps / "link")
    os.symlink("nowhere", deps / "dangling")
    os.symlink(deps / "plain", deps / "absolute")
    for odd in ODD_NAMES:
        (deps / "odd" / os.fsdecode(odd)).mkdir(parents=True)
        (deps / "odd" / os.fsdecode(odd) / "file").write_bytes(odd)
    os.mkfifo(deps / "fifo")
    with contextlib.chdir(deps), socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")


class SampleEntry(NamedTuple):
    mode: int
    mtime_ns: int
    content: str


def survey(root: Path) -> dict[str, SampleEntry]:
    """The owner's checkout to the last bit; of git's own files those that Atoll never writes."""
    found = {".": _entry(root)}
    kept = {f"{root}/.git/{name}" for name in ("HEAD", "index", "hooks", "info")}
    for directory, directories, names in os.walk(root):
        for name in (*directories, *names):
            path = Path(directory, name)
            if f"{root}/.git" not in f"{path}/" or any(str(path).startswith(k) for k in kept):
                found[str(path)] = _entry(path)
    return found


def _entry(path: Path) -> SampleEntry:
    status = path.lstat()
    content = b""
    if stat.S_ISLNK(status.st_mode):
        content = os.fsencode(path.readlink())
    elif stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK):
        content = blake2b(path.read_bytes()).digest()
    return SampleEntry(status.st_mode, status.st_mtime_ns, content.hex())


class Bench:
    """One project below a directory, with Atoll's home beside it."""

    def __init__(
        self, place: Path, driver: str, *, home: str = "home", name: str = "p", level: str = "clone"
    ) -> None:
        self.driver = driver
        self.level = level
        self.root = place / name
        self.home = place / home
        if not self.root.exists():
            plant_project(self.root)
        self.warnings: list[str] = []
        self.project: Project = open_project(self.root, home=self.home, warn=self.warnings.append)
        self.before = survey(self.root)

    def new(self, name: str, *, dirty: bool = False) -> Capsule:
        spec = CapsuleSpec(level=self.level, workspace=self.driver, dirty=dirty)
        return self.project.make([self.project.plan(name, spec)])[0]

    def run(self, capsule: Capsule, *argv: str, code: int = 0) -> str:
        """What a command inside said."""
        result = capsule.run(argv)
        said = (result.stdout + result.stderr).decode(errors="replace")
        if result.exit_code != code:
            raise AssertionError(f"ended with {result.exit_code} instead of {code}:\n{said}")
        return os.fsdecode(result.stdout)

    def sh(self, capsule: Capsule, script: str, *args: str, code: int = 0) -> str:
        return self.run(capsule, "sh", "-euc", dedent(script), "sh", *args, code=code)

    def python(self, capsule: Capsule, script: str, *args: str) -> str:
        """Runs a program that asserts inside; the suites' own words are there for it."""
        return self.run(capsule, *self._python(script), *args)

    def start(self, capsule: Capsule, script: str, *args: str) -> Run:
        """The same in the background."""
        return capsule.start(RunSpec(argv=(*self._python(script), *args), background=True))

    def _python(self, script: str) -> tuple[str, ...]:
        """The command for a program, whose lines are shown where it fails."""
        text = _PRELUDE + dedent(script)
        lines = "linecache.cache['inside'] = (0, None, text.splitlines(True), 'inside')"
        program = (
            f"import linecache; text = {text!r}; {lines}; exec(compile(text, 'inside', 'exec'))"
        )
        # Behind walls there are only the programs of the machine.
        python = "python3" if self.level == "sandbox" else sys.executable
        return python, "-I", "-X", "utf8", "-c", program

    @property
    def session(self) -> Session:
        return self.project.session

    def close(self) -> None:
        """Ends all that runs, with its groups and views; files are left to the caller."""
        try:
            for record in self.session.store.capsules():
                Capsule(session=self.session, record=record).stop()
                views.end_view(self.session, record)
                cgroup_limits.close_group(self.session, record)
        finally:
            self.session.forkserver.close()
            self.session.store.close()

    def require_owner_untouched(self) -> None:
        now = survey(self.root)
        changed = [path for path in {*self.before, *now} if self.before.get(path) != now.get(path)]
        assert not changed, f"changed in the owner's checkout: {sorted(changed)}"


class BenchSuite:
    """Gives its tests a capsule to share, and capsules of their own."""

    driver: ClassVar[str] = ""
    """The name of the driver under trial, as the registry knows it."""
    level: ClassVar[str] = "clone"
    """The level of the capsules: one with layers."""
    root: ClassVar[Path | None] = None
    """Where to work: a directory on the filesystem under trial."""
    _bench: ClassVar[Bench | None] = None
    _shared: ClassVar[Capsule | None] = None

    @property
    def bench(self) -> Bench:
        cls = type(self)
        if cls._bench is None:
            place = cls.root or Path(tempfile.mkdtemp(prefix="atoll-bench-"))
            cls._bench = Bench(place, self.driver, level=self.level)
        return cls._bench

    @property
    def shared(self) -> Capsule:
        cls = type(self)
        if cls._shared is None:
            cls._shared = self.bench.new("shared")
        return cls._shared

    @contextlib.contextmanager
    def own_bench(self, name: str, *, home: str = "home") -> Iterator[Bench]:
        """A project of its own, for tests that change what is the owner's."""
        place = self.bench.root.parent / "own" / name
        place.mkdir(parents=True)
        made = Bench(place, self.driver, home=home, name=name, level=self.level)
        try:
            yield made
        except BaseException:
            with contextlib.suppress(AtollError):
                made.close()
            raise
        made.close()

    def inside(self, script: str, *args: str) -> str:
        """Runs a Python program in the shared capsule; the owner must not notice."""
        said = self.bench.python(self.shared, script, *args)
        self.bench.require_owner_untouched()
        return said

    @classmethod
    def end(cls) -> None:
        """Called once after the last test."""
        if cls._bench is not None:
            bench, cls._bench, cls._shared = cls._bench, None, None
            bench.close()
            bench.require_owner_untouched()
            if cls.root is None:
                files.remove_tree(bench.root.parent, within=bench.root.parent)

    @classmethod
    def teardown_class(cls) -> None:
        cls.end()
