"""Brings commits out of a capsule into the owner's repository, as pack data through a quarantine.

Law: what an agent can write is never a repository, config, hook or path to a git of the host. What
comes from inside is bytes: counted as they come, indexed and checked aside, and taken over when
all of it is sound; else nothing is. Refs are not touched: the caller moves them afterwards.

A kill at any moment leaves the owner's store sound: a pack is seen when its index arrives, which
is last, and single objects arrive after those that they refer to. What it leaves of the quarantine
goes with the next import, or when the owner's `git gc` finds it two weeks old.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from atoll.host import files
from atoll.host.git import git
from atoll.host.process import Completed, Program, Streamed, stream
from atoll.model.errors import DriverError, StateError
from atoll.model.names import printable
from atoll.model.plan import Enclosure
from atoll.model.units import render_duration, render_size

_PREFIX = "tmp_objdir-atoll-"
"""Git's own housekeeping removes what is called `tmp_` and old."""
_ID = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_HEADER = struct.Struct(">4sII")
_EXPORT = ("git", "pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "-q")
_DURABLE = ("-c", "core.fsync=objects", "-c", "core.fsyncMethod=fsync")
"""Batched, git would neither wait for the disk nor keep single objects in their order."""
_INDEX = ("git", *_DURABLE, "index-pack", "--stdin", "--fix-thin", "--strict", "--index-version=2")
_UNPACK = ("git", *_DURABLE, "unpack-objects", "--strict", "-q")
_WALK = (
    # Of other worktrees git would read records that may just be in the making.
    "git", "rev-list", "--objects", "--quiet", "--stdin", "--single-worktree", "--not", "--all"
)  # fmt: skip
_MISSING = re.compile("did not receive expected object|unresolved delta")
_HOST = re.compile("No space left|quota exceeded|Input/output error|Read-only|Permission denied")
"""What git says when the host is at fault, and not what it was given."""
_LOOK = "run `git fsck --full --strict` inside"
_PACK_OBJECTS = 100
_PACK_BYTES = 1 << 20
"""Below both, objects are stored singly: many small packs would slow the owner's git down."""
_SAID_BYTES = 1 << 20
_SAID_SHOWN = 600


class Limits(NamedTuple):
    """What one export may cost the owner's machine."""

    size_bytes: int = 2 << 30
    objects: int = 1_000_000
    seconds: float | None = 600
    memory_bytes: int = 4 << 30
    """For each git that reads what came from inside: deltas can unfold to any size."""


LIMITS = Limits()


class Brought(NamedTuple):
    """What came: both are 0 when the owner had everything."""

    objects: int
    size_bytes: int


def bring(  # noqa: PLR0913 - two repositories, and what may pass between them
    repository: str,
    tips: Sequence[str],
    *,
    known: Sequence[str],
    inside: Enclosure,
    place: str,
    limits: Limits = LIMITS,
    keep_fds: Sequence[int] = (),
) -> Brought:
    """Brings the commits `tips` and all that they need into the owner's `repository`.

    `inside` and `place` say where the private repository is, `known` which commits both have, the
    most telling first: when the inner git misses one, it is asked again with the first half.
    `keep_fds` go to the git of the host only, never inside.

    Raises ValueError for what is no object id; StateError for an export that is broken, malicious,
    incomplete or over a limit; DriverError when a git fails, be it the inner one, or the disk
    does; PrerequisiteError when there is no git. In all cases nothing was taken, or at most, when
    the disk fails half-way, single objects that nobody refers to.
    """
    for name in (*tips, *known):
        if not _ID.fullmatch(name):
            raise ValueError(f"not an object id: {name!r}")
    if not tips:
        return Brought(objects=0, size_bytes=0)
    sweep(repository)
    objects = _objects_of(repository)
    store = _Store(os.path.realpath(repository), objects, objects, tuple(keep_fds))
    ends_at = None if limits.seconds is None else time.monotonic() + limits.seconds
    export = _Export(tuple(tips), inside, place, limits, ends_at)
    kinds = store.kinds((*tips, *known))
    if all(kinds[tip] == "commit" for tip in tips) and store.walk(export).is_good:
        return Brought(objects=0, size_bytes=0)
    shared = tuple(commit for commit in known if kinds[commit] == "commit")
    with _quarantined(store) as (aside, pack):
        brought = export.receive(pack, shared)
        _index(aside, export, pack)
        _require_whole(aside, export)
        with _writing():
            if brought.objects < _PACK_OBJECTS and brought.size_bytes < _PACK_BYTES:
                _unpack(store, export, pack)
                _sync_singles(aside)
            else:
                _move_pack(aside)
    return brought


def sweep(repository: str) -> None:
    """Removes the quarantines of imports that were killed; those of living ones are locked."""
    objects = _objects_of(repository)
    with _writing():
        for place in [path for path in objects.iterdir() if path.name.startswith(_PREFIX)]:
            handle = _locked(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if handle >= 0:
                files.remove_tree(place, within=objects)
                os.close(handle)


def _objects_of(repository: str) -> Path:
    return Path(repository, "objects").resolve()


class _Export(NamedTuple):
    """What is asked for, and what it may cost."""

    tips: tuple[str, ...]
    inside: Enclosure
    place: str
    limits: Limits
    ends_at: float | None

    def left_s(self) -> float | None:
        return None if self.ends_at is None else self.ends_at - time.monotonic()

    def receive(self, pack: FileIO, known: tuple[str, ...]) -> Brought:
        """Writes what the inner git packs to `pack`, unchecked but for its header."""
        while True:
            incoming = _Incoming(self, pack)
            asked = [*self.tips, *(f"^{commit}" for commit in known)]
            program = Program(_EXPORT, cwd=self.place, within=self.inside, stdin=_lines(asked))
            done = stream(
                program,
                incoming.take,
                limit_bytes=self.limits.size_bytes,
                timeout_s=self.left_s(),
            )
            self.require_in_time(done)
            if done.ended == "size":
                raise self.refusal(
                    f"is larger than {render_size(self.limits.size_bytes)}",
                    hint="commit less, and keep large and generated files out of git",
                )
            if done.completed.code == 0:
                return incoming.brought()
            if not known or incoming.size_bytes:
                raise _failure(done.completed, "pack-objects", self.place)
            known = known[: len(known) // 2]

    def require_in_time(self, done: Streamed) -> None:
        if done.ended == "time":
            most = render_duration(self.limits.seconds or 0)
            raise self.refusal(f"took longer than {most}", hint="try again")

    def refusal(self, why: str, *, hint: str) -> StateError:
        return StateError(
            f"the export of `{printable(self.place)}` {why}; nothing was taken", hint=hint
        )


class _Incoming:
    """A pack as it comes in."""

    def __init__(self, export: _Export, file: FileIO) -> None:
        self._export, self._file = export, file
        self._head = b""
        self._objects: int | None = None
        self.size_bytes = 0

    def take(self, chunk: bytes) -> None:
        self.size_bytes += len(chunk)
        if self._objects is None:
            self._head += chunk
            if len(self._head) >= _HEADER.size:
                self._objects = self._count()
        with _writing():
            while chunk:
                chunk = chunk[self._file.write(chunk) :]

    def brought(self) -> Brought:
        if self._objects is None:
            raise self._no_pack()
        return Brought(objects=self._objects, size_bytes=self.size_bytes)

    def _count(self) -> int:
        magic, version, count = _HEADER.unpack_from(self._head)
        if magic != b"PACK" or version not in (2, 3):
            raise self._no_pack()
        most = self._export.limits.objects
        if count > most:
            raise self._export.refusal(
                f"has more than {most:,} objects", hint="keep generated files out of git"
            )
        return int(count)

    def _no_pack(self) -> StateError:
        return self._export.refusal("is not a pack", hint=_LOOK)


class _Store(NamedTuple):
    """The owner's repository, seen with or without a quarantine that takes new objects."""

    repository: str
    objects: Path
    target: Path
    """Where new objects go."""
    keep_fds: tuple[int, ...]

    def env(self) -> dict[str, str]:
        variables = {
            "GIT_DIR": self.repository,
            # What really is there counts, not what the owner has put in its place.
            "GIT_NO_REPLACE_OBJECTS": "1",
            # In a partial clone git would fetch whatever an agent names; the older ones know
            # only the first of the two.
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_NO_LAZY_FETCH": "1",
        }
        if self.target != self.objects:
            variables["GIT_OBJECT_DIRECTORY"] = str(self.target)
            variables["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = _quoted(str(self.objects))
            # With this, git refuses to touch a ref.
            variables["GIT_QUARANTINE_PATH"] = str(self.target)
        return variables

    def kinds(self, names: Sequence[str]) -> dict[str, str]:
        """`commit`, `tree`, … or `missing` for each."""
        answer = git(
            "cat-file", "--batch-check=%(objectname) %(objecttype)",
            cwd=self.repository, env=self.env(), stdin=_lines(names), keep_fds=self.keep_fds,
        )  # fmt: skip
        # An id of the other format can be the beginning of one of this: that one was not asked for.
        found = dict(line.split(" ", 1) for line in answer.text.splitlines())
        return {name: found.get(name, "missing") for name in names}

    def walk(self, export: _Export) -> Streamed:
        """Looks whether all that the tips need is there, beyond what the owner's refs need."""
        return self.read(_WALK, export, _lines(export.tips))

    def read(self, argv: tuple[str, ...], export: _Export, stdin: bytes | FileIO) -> Streamed:
        """Lets a git of the host read what came from inside, within the limits."""
        if isinstance(stdin, FileIO):
            stdin.seek(0)
        program = Program(
            argv,
            cwd=self.repository,
            env=self.env(),
            stdin=stdin.fileno() if isinstance(stdin, FileIO) else stdin,
            keep_fds=self.keep_fds,
            memory_bytes=export.limits.memory_bytes,
        )
        done = stream(program, len, limit_bytes=_SAID_BYTES, timeout_s=export.left_s())
        export.require_in_time(done)
        return done


def _index(aside: _Store, export: _Export, pack: FileIO) -> None:
    """Checks every object by itself, and that those have come that it refers to."""
    done = aside.read(_INDEX, export, pack)
    if done.is_good:
        return
    said = _said(done.completed)
    if done.ended == "whole" and (done.completed.code < 0 or _HOST.search(said)):
        raise _failure(done.completed, "index-pack", aside.repository)
    how = "is incomplete" if _MISSING.search(said) else "is refused by git"
    raise export.refusal(f"{how}: {said}", hint=_LOOK)


def _require_whole(aside: _Store, export: _Export) -> None:
    for tip, kind in aside.kinds(export.tips).items():
        if kind != "commit":
            what = "is not in it" if kind == "missing" else f"is a {kind} and not a commit"
            raise export.refusal(f"is not what was asked for: `{tip}` {what}", hint="try again")
    done = aside.walk(export)
    if not done.is_good:
        raise export.refusal(f"is incomplete: {_said(done.completed)}", hint=_LOOK)


def _unpack(store: _Store, export: _Export, pack: FileIO) -> None:
    """Stores the objects singly: git writes each one after those that it refers to."""
    done = store.read(_UNPACK, export, pack)
    if not done.is_good:
        raise _failure(done.completed, "unpack-objects", store.repository)


def _sync_singles(aside: _Store) -> None:
    """Git has synced the objects, but not the directories that name them."""
    index = next((aside.target / "pack").glob("*.idx")).read_bytes()
    # It tells first how many objects there are up to each first byte of their names.
    counts = struct.unpack_from(">256I", index, 8)
    for byte, (before, count) in enumerate(pairwise((0, *counts))):
        directory = aside.objects / f"{byte:02x}"
        if count > before and directory.is_dir():
            files.sync_directory(directory)
    files.sync_directory(aside.objects)


def _move_pack(aside: _Store) -> None:
    target = aside.objects / "pack"
    if not target.is_dir():
        target.mkdir()
        target.chmod(stat.S_IMODE(aside.objects.stat().st_mode))
        files.sync_directory(aside.objects)
    # Git looks for indexes: what belongs to one has to be there before it.
    for path in sorted((aside.target / "pack").iterdir(), key=lambda path: path.suffix == ".idx"):
        # The name tells the content.
        if not (target / path.name).exists():
            os.rename(path, target / path.name)
    files.sync_directory(target)


@contextmanager
def _quarantined(store: _Store) -> Iterator[tuple[_Store, FileIO]]:
    """The store with a quarantine, locked as long as anybody works on it, and a file in it."""
    place, handle = store.objects, -1
    with _writing():
        while handle < 0:
            place = store.objects / f"{_PREFIX}{os.urandom(6).hex()}"
            place.mkdir(mode=0o700)
            handle = _locked(place, fcntl.LOCK_EX)
    try:
        with FileIO(place / "incoming", "x+") as pack:
            yield store._replace(target=place, keep_fds=(*store.keep_fds, handle)), pack
    finally:
        with _writing():
            files.remove_tree(place, within=store.objects)
        os.close(handle)


def _locked(place: Path, how: int) -> int:
    """A descriptor that locks a directory; -1 when it is gone or somebody else has it."""
    try:
        handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    with suppress(BlockingIOError):
        fcntl.flock(handle, how)
        # Whoever sweeps may have been faster.
        if place.exists():
            return handle
    os.close(handle)
    return -1


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DriverError(f"the owner's objects cannot be written: {error}") from error


def _lines(names: Sequence[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode()


def _quoted(path: str) -> str:
    """A path for a list that git separates by colons."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _said(done: Completed) -> str:
    lines = done.stderr.decode("utf-8", "replace").splitlines()
    text = "; ".join(printable(line.strip()) for line in lines if line.strip())
    return text[-_SAID_SHOWN:] or "git said nothing"


def _failure(done: Completed, command: str, place: str) -> DriverError:
    return DriverError(
        f"`git {command}` in `{printable(place)}` failed with exit code {done.code}: {_said(done)}"
    )
