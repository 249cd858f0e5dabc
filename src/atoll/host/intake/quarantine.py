"""Imports objects into the owner's repository, as pack data through a quarantine.

A pack is counted while it is received, indexed and checked in the quarantine, and moved into the
store if all of it is valid; otherwise nothing is. Nothing that an agent can write is ever used as a
repository, config, hook or path by a git on the host. The caller updates refs afterwards.

A kill at any moment leaves the owner's store consistent: a pack becomes visible with its index,
which is moved last, and single objects are moved after those that they refer to. The next import
removes the remains of the quarantine, or `git gc` does when they are two weeks old.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from atoll.host import files
from atoll.host.git import git
from atoll.host.intake import secret_scan
from atoll.host.intake.transfer import (
    LIMITS,
    LOOK,
    ImportSize,
    Transfer,
    error_output,
    failure_of,
    writing,
)
from atoll.host.process import Program, Streamed, stream
from atoll.model.secretvalues import SecretSearch

_PREFIX = "tmp_objdir-atoll-"
"""`git gc` removes old files whose names start with `tmp_`."""
_DURABLE = ("-c", "core.fsync=objects", "-c", "core.fsyncMethod=fsync")
"""In batch mode git would neither sync nor keep the order of single objects."""
_INDEX = ("git", *_DURABLE, "index-pack", "--stdin", "--fix-thin", "--strict", "--index-version=2")
_UNPACK = ("git", *_DURABLE, "unpack-objects", "--strict", "-q")
_WALK = (
    # Of other worktrees git would read records that may be under construction.
    "git", "rev-list", "--objects", "--quiet", "--stdin", "--single-worktree", "--not", "--all"
)  # fmt: skip
_MISSING = re.compile("did not receive expected object|unresolved delta")
_HOST = re.compile("No space left|quota exceeded|Input/output error|Read-only|Permission denied")
"""Git's messages when the host is at fault instead of the input."""
_PACK_OBJECTS = 100
_PACK_BYTES = 1 << 20
"""Below both limits, objects are stored singly: many small packs would slow down git."""
_SAID_BYTES = 1 << 20


def sweep(repository: str) -> None:
    """Removes the quarantines of killed imports; those of live ones are locked."""
    objects = _objects_of(repository)
    with writing():
        for place in [path for path in objects.iterdir() if path.name.startswith(_PREFIX)]:
            handle = _locked(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if handle >= 0:
                files.remove_tree(place, within=objects)
                os.close(handle)


def _objects_of(repository: str) -> Path:
    return Path(repository, "objects").resolve()


class OwnerStore(NamedTuple):
    """The owner's repository, with or without a quarantine for new objects."""

    repository: str
    objects: Path
    target: Path
    """The directory for new objects."""
    keep_fds: tuple[int, ...] = ()
    """Of the quarantine's lock: every git that is started inherits it."""

    @classmethod
    def open(cls, repository: str) -> OwnerStore:
        """Also removes old quarantines."""
        sweep(repository)
        objects = _objects_of(repository)
        return cls(os.path.realpath(repository), objects, objects)

    def env(self) -> dict[str, str]:
        variables = {
            "GIT_DIR": self.repository,
            # Use the objects themselves, not their replacements.
            "GIT_NO_REPLACE_OBJECTS": "1",
            # In a partial clone git would fetch what an agent names; older versions know only the
            # first of the two.
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_NO_LAZY_FETCH": "1",
        }
        if self.target != self.objects:
            variables["GIT_OBJECT_DIRECTORY"] = str(self.target)
            variables["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = _quoted(str(self.objects))
            # With this, git refuses to update a ref.
            variables["GIT_QUARANTINE_PATH"] = str(self.target)
        return variables

    def kinds(self, names: Sequence[str]) -> dict[str, str]:
        """`commit`, `tree`, … or `missing` for each."""
        answer = git(
            "cat-file", "--batch-check=%(objectname) %(objecttype)",
            cwd=self.repository, env=self.env(), stdin=lines_of(names), keep_fds=self.keep_fds,
        )  # fmt: skip
        # A short id may match an object of the other hash format that was not requested.
        found = dict(line.split(" ", 1) for line in answer.lines)
        return {name: found.get(name, "missing") for name in names}

    def peeled(self, names: Sequence[str]) -> dict[str, tuple[str, str]]:
        """The object and type of each: itself or, for a tag, its final target."""
        asked = [form for name in names for form in (name, f"{name}^{{}}")]
        answer = git(
            "cat-file", "--batch-check=%(objectname) %(objecttype)",
            cwd=self.repository, env=self.env(), stdin=lines_of(asked), keep_fds=self.keep_fds,
        )  # fmt: skip
        rows = [line.rpartition(" ")[::2] for line in answer.lines]
        pairs = zip(names, rows[::2], rows[1::2], strict=True)
        # A short id may match an object of the other hash format that was not requested.
        return {name: row if own[0] == name else (name, "missing") for name, own, row in pairs}

    def walk(self, transfer: Transfer) -> Streamed:
        """Checks that everything the tips need exists, beyond what the owner's refs need."""
        return self.read(_WALK, transfer, lines_of(transfer.tips))

    def read(self, argv: tuple[str, ...], transfer: Transfer, stdin: bytes | FileIO) -> Streamed:
        """Runs a git on the host that reads untrusted objects, within the limits."""
        program = self.program(argv, transfer, stdin)
        done = stream(program, len, limit_bytes=_SAID_BYTES, timeout_s=transfer.left_s())
        if done.ended == "time":
            raise transfer.too_late()
        return done

    def program(self, argv: tuple[str, ...], transfer: Transfer, stdin: bytes | FileIO) -> Program:
        if isinstance(stdin, FileIO):
            stdin.seek(0)
        return Program(
            argv,
            cwd=self.repository,
            env=self.env(),
            stdin=stdin.fileno() if isinstance(stdin, FileIO) else stdin,
            keep_fds=self.keep_fds,
            memory_bytes=transfer.limits.memory_bytes,
        )


def index(aside: OwnerStore, transfer: Transfer, pack: FileIO) -> None:
    """Checks every object, and that everything it refers to was received."""
    done = aside.read(_INDEX, transfer, pack)
    if done.is_good:
        return
    output = error_output(done.completed)
    require_host(done, "index-pack", aside.repository)
    if _MISSING.search(output):
        raise transfer.incomplete(output)
    raise transfer.refusal(f"was rejected by git: {output}", hint=LOOK)


def require_host(done: Streamed, command: str, place: str) -> None:
    """Raises DriverError if git failed because of the host and not of its input."""
    is_fault = is_fault_of_host(error_output(done.completed))
    if done.ended == "whole" and (done.completed.code < 0 or is_fault):
        raise failure_of(done.completed, command, place)


def is_fault_of_host(output: str) -> bool:
    return _HOST.search(output) is not None


def require_commits(aside: OwnerStore, transfer: Transfer) -> None:
    for tip, kind in aside.kinds(transfer.tips).items():
        if kind != "commit":
            raise transfer.no_commit(tip, kind)


def require_clean(repository: str, tip: str, search: SecretSearch) -> None:
    """Raises StateError if a commit that the owner's repository has already, such as that of a
    recovery point, contains a secret which the owner's branches do not have.
    """
    transfer = Transfer.start([tip], LIMITS, search=search)
    secret_scan.require_clean(OwnerStore.open(repository).program, transfer)


def accept_pack(
    store: OwnerStore, aside: OwnerStore, transfer: Transfer, pack: FileIO, brought: ImportSize
) -> None:
    """Moves the quarantined objects into the owner's store if everything the tips need exists, and
    nothing in it is secret.
    """
    _require_whole(aside, transfer)
    with writing():
        if brought.objects < _PACK_OBJECTS and brought.size_bytes < _PACK_BYTES:
            _unpack(store, transfer, pack)
            _sync_singles(aside)
        else:
            _move_pack(aside)


def accept_own_pack(
    aside: OwnerStore, transfer: Transfer, pack: FileIO, names: Sequence[str], brought: ImportSize
) -> None:
    """Imports a pack that the host created, with the same checks; `names` are its objects in
    dependency order.
    """
    if brought.objects >= _PACK_OBJECTS or brought.size_bytes >= _PACK_BYTES:
        index(aside, transfer, pack)
        _require_whole(aside, transfer)
        with writing():
            _move_pack(aside)
        return
    # Single objects are checked in the quarantine and moved, instead of written twice.
    _unpack(aside, transfer, pack)
    _require_whole(aside, transfer)
    with writing():
        _move_singles(aside, names)


def _require_whole(aside: OwnerStore, transfer: Transfer) -> None:
    done = aside.walk(transfer)
    if not done.is_good:
        require_host(done, "rev-list", aside.repository)
        raise transfer.incomplete(error_output(done.completed))
    secret_scan.require_clean(aside.program, transfer)


def _move_singles(aside: OwnerStore, names: Sequence[str]) -> None:
    """Moves objects that git has synced, and syncs their directories."""
    directories = {}
    for name in names:
        source = aside.target / name[:2] / name[2:]
        # The owner has it already.
        if not source.exists():
            continue
        place = directories[name[:2]] = aside.objects / name[:2]
        if not place.is_dir():
            place.mkdir(exist_ok=True)
            place.chmod(stat.S_IMODE(aside.objects.stat().st_mode))
        if not (place / name[2:]).exists():
            os.rename(source, place / name[2:])
    for place in directories.values():
        files.sync_directory(place)
    files.sync_directory(aside.objects)


def _unpack(store: OwnerStore, transfer: Transfer, pack: FileIO) -> None:
    """Stores the objects singly: git writes each one after those that it refers to."""
    done = store.read(_UNPACK, transfer, pack)
    if not done.is_good:
        raise failure_of(done.completed, "unpack-objects", store.repository)


def _sync_singles(aside: OwnerStore) -> None:
    """Syncs the directories of objects that git has synced."""
    index = next((aside.target / "pack").glob("*.idx")).read_bytes()
    # The index starts with the number of objects up to each first byte of their ids.
    counts = struct.unpack_from(">256I", index, 8)
    for byte, (before, count) in enumerate(pairwise((0, *counts))):
        directory = aside.objects / f"{byte:02x}"
        if count > before and directory.is_dir():
            files.sync_directory(directory)
    files.sync_directory(aside.objects)


def _move_pack(aside: OwnerStore) -> None:
    target = aside.objects / "pack"
    if not target.is_dir():
        target.mkdir()
        target.chmod(stat.S_IMODE(aside.objects.stat().st_mode))
        files.sync_directory(aside.objects)
    # Git looks for indexes: the other files of a pack must exist first.
    for path in sorted((aside.target / "pack").iterdir(), key=lambda path: path.suffix == ".idx"):
        # The name is derived from the content.
        if not (target / path.name).exists():
            os.rename(path, target / path.name)
    files.sync_directory(target)


@contextmanager
def quarantined(store: OwnerStore) -> Iterator[tuple[OwnerStore, FileIO]]:
    """The store with a quarantine, locked while it is in use, and a file in it."""
    place, handle = store.objects, -1
    with writing():
        while handle < 0:
            place = store.objects / f"{_PREFIX}{os.urandom(6).hex()}"
            place.mkdir(mode=0o700)
            handle = _locked(place, fcntl.LOCK_EX)
    try:
        with FileIO(place / "incoming", "x+") as pack:
            yield store._replace(target=place, keep_fds=(handle,)), pack
    finally:
        with writing():
            files.remove_tree(place, within=store.objects)
        os.close(handle)


def _locked(place: Path, how: int) -> int:
    """A descriptor that locks a directory; -1 if it is gone or locked."""
    try:
        handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    with suppress(BlockingIOError):
        fcntl.flock(handle, how)
        # A sweep may have removed it first.
        if place.exists():
            return handle
    os.close(handle)
    return -1


def lines_of(names: Sequence[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode()


def _quoted(path: str) -> str:
    """A path quoted for a colon-separated list of git."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
