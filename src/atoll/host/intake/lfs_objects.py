"""Git LFS objects: imports from capsules, and the stores they go to. git-lfs is not run.

A commit holds pointers only. The objects are in the capsule's `.git/lfs/objects`, as files that an
agent can write: they are opened without following a link and imported only if size and SHA-256
match the pointer. Pointers are hostile input as well (`model/lfs.py`).

Hashing costs the owner time, and a sparse object of any size costs an agent nothing. So the bytes
of holes and of wrong objects are limited, and a wrong object is not hashed again while unchanged.

An object is written under a temporary name, synced, and renamed once its size and SHA-256 match: a
store never holds an object that is incomplete or wrong. Blocks of zeros become holes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from atoll.host import files
from atoll.host.beneath import TreeReader
from atoll.host.intake.quarantine import lines_of
from atoll.host.intake.refs import GIT_DIRECTORY
from atoll.host.intake.secret_scan import searched
from atoll.host.intake.store import IntakeRepository
from atoll.host.intake.transfer import require_ids, writing
from atoll.model.errors import StateError
from atoll.model.lfs import POINTER_BYTES, Pointer, parse_pointer
from atoll.model.secretvalues import SecretSearch
from atoll.model.units import render_size
from atoll.model.untrusted import InsidePath, Untrusted, find_path

_WHAT = "the owner's Git LFS objects"
_OID = re.compile("[0-9a-f]{64}")
_BLOCK = bytes(4096)
_PIECE_BYTES = 1 << 20


class LfsStore(NamedTuple):
    objects: Path
    what: str = _WHAT
    """For messages."""

    @classmethod
    def of(cls, repository: str, storage: str = "") -> LfsStore:
        """`storage` is the owner's setting `lfs.storage`; by default objects are in the git
        directory, to which a relative path refers as well.
        """
        place = os.path.join(repository, os.path.expanduser(storage) or "lfs")
        return cls(Path(place, "objects"))

    def path_of(self, pointer: Pointer) -> Path:
        return self.objects / pointer.place

    def has(self, pointer: Pointer) -> bool:
        """Whether a file of the right name and size exists."""
        try:
            found = self.path_of(pointer).stat()
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == pointer.size_bytes

    def all(self) -> list[Pointer]:
        """All objects, by name and size."""
        found = sorted(self.objects.glob("*/*/*"))
        return [Pointer(p.name, p.stat().st_size) for p in found if _OID.fullmatch(p.name)]

    def take(self, pointer: Pointer, pieces: Iterable[bytes]) -> bool:
        """Stores an object; returns False, with nothing stored, if the content does not match.

        Reads at most one piece beyond the size in the pointer. Raises DriverError if the store
        cannot be written.
        """
        target = self.path_of(pointer)
        aside = target.with_name(f"{target.name}.{os.urandom(6).hex()}")
        with writing(self.what):
            _make_directories(target.parent)
            try:
                if not _write(aside, pointer, pieces):
                    return False
                os.replace(aside, target)
                files.sync_directory(target.parent)
            finally:
                aside.unlink(missing_ok=True)
        return True

    def add(self, pointer: Pointer, source: LfsStore) -> bool:
        """Stores an object of another store: by a hard link, whose content is not checked, or as a
        copy. Returns False as `copy` does; raises as `take`.
        """
        return self.has(pointer) or self._link(pointer, source) or self.copy(pointer, source)

    def copy(self, pointer: Pointer, source: LfsStore) -> bool:
        """Stores a verified copy of an object; returns False if the source lacks it or its content
        does not match. Raises as `take`.
        """
        if not source.has(pointer):
            return False
        try:
            file = source.path_of(pointer).open("rb", buffering=0)
        except OSError:
            return False
        with file:
            return self.take(pointer, pieces(file))

    def _link(self, pointer: Pointer, source: LfsStore) -> bool:
        """Returns False if linking is not possible, or if another user could change the object."""
        if not source.has(pointer):
            return False
        target = self.path_of(pointer)
        try:
            real = Path(os.path.realpath(source.path_of(pointer)))
            status = real.stat()
            if status.st_uid != os.geteuid() or status.st_mode & stat.S_IWOTH:
                return False
            _make_directories(target.parent)
            # Its writer may not have synced it.
            files.sync_file(real)
            os.link(real, target)
            files.sync_directory(target.parent)
        except OSError:
            return False
        return True


def pieces(file: FileIO) -> Iterator[bytes]:
    """The readable content of a file; an error ends it, and then the hash does not match."""
    with suppress(OSError):
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _make_directories(place: Path) -> None:
    """Creates a directory and its parents, durably."""
    if place.is_dir():
        return
    _make_directories(place.parent)
    place.mkdir(exist_ok=True)
    files.sync_directory(place.parent)


def _write(path: Path, pointer: Pointer, pieces: Iterable[bytes]) -> bool:
    digest, size = hashlib.sha256(usedforsecurity=False), 0
    with open(path, "xb", buffering=0, opener=_open_unshared) as file:
        for piece in pieces:
            size += len(piece)
            if size > pointer.size_bytes:
                return False
            digest.update(piece)
            _write_sparse(file, piece)
        if (size, digest.hexdigest()) != (pointer.size_bytes, pointer.oid):
            return False
        # The file may end with a hole.
        file.truncate(size)
        os.fsync(file.fileno())
    return True


def _open_unshared(path: str, flags: int) -> int:
    """Only the owner can write, independent of the umask."""
    return os.open(path, flags, 0o644)


def _write_sparse(file: FileIO, piece: bytes) -> None:
    """Writes at the file's position, and skips blocks of zeros."""
    view, start = memoryview(piece), 0
    for at in range(0, len(piece), len(_BLOCK)):
        end = min(at + len(_BLOCK), len(piece))
        if piece.startswith(_BLOCK[: end - at], at):
            files.write_all(file, view[start:at])
            file.seek(end - at, os.SEEK_CUR)
            start = end
    files.write_all(file, view[start:])


SMALLEST_POINTER_BYTES = 80
"""The minimum size of a pointer."""
_PORTION = 50_000
"""How many blobs are read at once: at most 50 MB."""
MOST_OBJECTS = 100_000
MOST_BYTES = 32 << 30
MOST_WRONG_BYTES = 8 << 30
"""The limit for hashing wrong objects, and so the size of the largest object."""
MOST_HOLE_BYTES = 1 << 30
_MOST_HOLES = 1 << 16
_REMEMBERED_BYTES = 1 << 20
"""Smaller objects are hashed again: that is cheaper than remembering them."""
_MOST_REMEMBERED = 10_000
_MISSING = (
    "a Git LFS pointer whose object is neither in the capsule nor in your repository; "
    "`git lfs fetch` may find it on the server"
)
_REFUSED = (
    "the Git LFS object in the capsule was not imported: it does not match its pointer, cannot be "
    "read, or exceeds a limit"
)


class WrongObjects:
    """Objects that were hashed and did not match their pointers, recorded in a file of Atoll. A
    file is identified by inode, size and ctime, which no program inside can set.
    """

    def __init__(self, place: Path | None = None) -> None:
        """Without a path they are not saved."""
        self._place = place
        self._known: dict[tuple[str | int, ...], None] | None = None
        self._is_changed = False

    def knows(self, pointer: Pointer, status: os.stat_result) -> bool:
        return _identity(pointer, status) in self._load()

    def add(self, pointer: Pointer, status: os.stat_result) -> None:
        if status.st_size >= _REMEMBERED_BYTES:
            self._load()[_identity(pointer, status)] = None
            self._is_changed = True

    def save(self) -> None:
        """Raises OSError."""
        if self._place is not None and self._is_changed:
            newest = list(self._load())[-_MOST_REMEMBERED:]
            files.write_atomic(self._place, json.dumps(newest).encode(), durable=False)
            self._is_changed = False

    def _load(self) -> dict[tuple[str | int, ...], None]:
        if self._known is None:
            content = None
            if self._place is not None:
                content = files.read_regular(self._place, limit_bytes=1 << 24)
            try:
                self._known = dict.fromkeys(tuple(entry) for entry in json.loads(content or b"[]"))
            except (ValueError, TypeError):
                # Truncated: everything is hashed again.
                self._known = {}
        return self._known


def _identity(pointer: Pointer, status: os.stat_result) -> tuple[str | int, ...]:
    return pointer.oid, status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns


class LfsBudget:
    """What one import may still cost, including submodules."""

    def __init__(
        self,
        size_bytes: int = 0,
        *,
        wrong: WrongObjects | None = None,
        search: SecretSearch | None = None,
    ) -> None:
        """`size_bytes` is the capsule's disk limit; 0 if it has none. No object may contain what
        `search` finds.
        """
        self.left_bytes = min(size_bytes or MOST_BYTES, MOST_BYTES)
        self.left_wrong_bytes = MOST_WRONG_BYTES
        self.left_hole_bytes = MOST_HOLE_BYTES
        self.wrong = wrong or WrongObjects()
        self.search = search

    def allows(self, size_bytes: int) -> bool:
        return size_bytes <= min(self.left_bytes, self.left_wrong_bytes)

    def spend(self, size_bytes: int, hole_bytes: int) -> bool:
        """Whether this much may be read; it counts whether or not the object matches."""
        if not self.allows(size_bytes) or hole_bytes > self.left_hole_bytes:
            return False
        self.left_bytes -= size_bytes
        self.left_hole_bytes -= hole_bytes
        return True


class LfsImport(NamedTuple):
    """The results for the LFS objects of new commits; paths are for display."""

    brought: int = 0
    missing: tuple[str, ...] = ()
    """Their objects are neither in the capsule nor in the owner's store."""
    refused: tuple[str, ...] = ()
    """The capsule's objects for these were not imported: they do not match the pointer, cannot be
    read, or exceed a limit.
    """

    def notes(self) -> tuple[str, ...]:
        """One sentence per kind of failure, for a warning."""
        kinds = ((self.missing, _MISSING), (self.refused, _REFUSED))
        return tuple(f"{_listed(paths)}: {why}" for paths, why in kinds if paths)


def _listed(paths: Sequence[str]) -> str:
    shown = ", ".join(f"`{path}`" for path in paths[:3])
    return f"{shown} and {len(paths) - 3} more" if len(paths) > 3 else shown


def find_pointers(
    store: IntakeRepository, tips: Sequence[str], *, known: Sequence[str], most: int = MOST_OBJECTS
) -> dict[Pointer, InsidePath | None]:
    """The pointers in commits that `known` ones lack, each with one of its paths.

    Raises StateError if there are more than `most`.
    """
    require_ids(*tips, *known)
    # The tips may have just been written, and missing ones are skipped.
    store.flush()
    asked = lines_of([*tips, *(f"^{name}" for name in known)])
    listed = store.run(
        "rev-list", "--objects", "--ignore-missing", f"--filter=blob:limit={POINTER_BYTES}",
        "--stdin", stdin=asked,
    )  # fmt: skip
    paths = dict(line.partition(b" ")[::2] for line in listed.split(b"\n") if b" " in line)
    found: dict[Pointer, InsidePath | None] = {}
    for name, content in _small_blobs(store, list(paths)):
        pointer = parse_pointer(content)
        if pointer is not None:
            found.setdefault(pointer, find_path(Untrusted(paths[name])))
        if len(found) > most:
            raise StateError(f"the commits have more than {most:,} Git LFS files")
    return found


def _small_blobs(store: IntakeRepository, names: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """(id, content) of the objects that may be pointers."""
    if not names:
        return
    sized = store.run(
        "cat-file", "--buffer", "--batch-check=%(objectname) %(objecttype) %(objectsize)",
        stdin=b"".join(name + b"\n" for name in names),
    )  # fmt: skip
    rows = [line.split(b" ") for line in sized.split(b"\n")[:-1]]
    small = [
        row[0]
        for row in rows
        if row[1] == b"blob" and SMALLEST_POINTER_BYTES <= int(row[2]) < POINTER_BYTES
    ]
    for start in range(0, len(small), _PORTION):
        given = b"".join(name + b"\n" for name in small[start : start + _PORTION])
        yield from parse_batch(store.run("cat-file", "--buffer", "--batch", stdin=given))


def parse_batch(answer: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(id, content) of the objects in the output of `cat-file --batch`."""
    at = 0
    while at < len(answer):
        end = answer.index(b"\n", at)
        words = answer[at:end].split(b" ")
        size = int(words[2])
        yield words[0], answer[end + 1 : end + 1 + size]
        at = end + 1 + size + 1


def copy_objects(
    sources: Sequence[LfsStore],
    target: LfsStore,
    wanted: Iterable[tuple[Pointer, InsidePath | None]],
) -> tuple[str, ...]:
    """Copies missing objects to `target` and verifies them. Returns the paths of those that no
    source has.
    """
    missing: list[str] = []
    for pointer, path in wanted:
        # An empty file has no object.
        if pointer.size_bytes == 0 or target.has(pointer):
            continue
        if not any(target.copy(pointer, source) for source in sources):
            missing.append(pointer.oid if path is None else path.shown())
    return tuple(dict.fromkeys(missing))


def import_lfs_objects(  # noqa: PLR0913 - two stores, and what may pass between them
    store: IntakeRepository,
    reader: TreeReader,
    tips: Sequence[str],
    *,
    known: Sequence[str],
    at: InsidePath = GIT_DIRECTORY,
    root: InsidePath | None = None,
    budget: LfsBudget,
) -> LfsImport:
    """Imports the LFS objects that commits refer to and the owner lacks.

    `at` is the capsule's git directory, `root` the path of its files. Raises StateError for too
    many pointers, DriverError if a git or the disk fails.
    """
    target = LfsStore.of(store.repository, store.settings.lfs_storage)
    inside = at.child(b"lfs")
    if not tips or (reader.kind(inside) is None and not target.objects.is_dir()):
        return LfsImport()
    try:
        return _import_found(
            target, reader, find_pointers(store, tips, known=known), inside, root, budget
        )
    finally:
        with suppress(OSError):
            # Then they are hashed again next time.
            budget.wrong.save()


def _import_found(
    target: LfsStore,
    reader: TreeReader,
    pointers: Mapping[Pointer, InsidePath | None],
    inside: InsidePath,
    root: InsidePath | None,
    budget: LfsBudget,
) -> LfsImport:
    brought = 0
    missing: list[str] = []
    refused: list[str] = []
    for pointer, path in pointers.items():
        # An empty file has no object.
        if pointer.size_bytes == 0 or target.has(pointer):
            continue
        own = InsidePath(b"/".join((inside.raw, b"objects", pointer.place.encode())))
        shown = own.shown() if path is None else path.shown()
        if not budget.allows(pointer.size_bytes):
            refused.append(f"{shown} ({render_size(pointer.size_bytes)})")
        elif _take(target, reader, pointer, [own, *_in_files(root, path)], budget):
            brought += 1
        elif reader.kind(own) is None:
            missing.append(shown)
        else:
            refused.append(shown)
    return LfsImport(brought, tuple(missing), tuple(refused))


def _in_files(root: InsidePath | None, path: InsidePath | None) -> list[InsidePath]:
    """Where else the object may be: in the file that it was made from."""
    if path is None:
        return []
    return [path if root is None else InsidePath(root.raw + b"/" + path.raw)]


def _take(
    target: LfsStore,
    reader: TreeReader,
    pointer: Pointer,
    places: Sequence[InsidePath],
    budget: LfsBudget,
) -> bool:
    for place in places:
        handle = reader.find_file(place)
        if handle is None:
            continue
        with open(handle, "rb", buffering=0) as file:
            # Taken before reading: any later write changes the ctime.
            status = os.fstat(handle)
            if status.st_size != pointer.size_bytes or budget.wrong.knows(pointer, status):
                continue
            if not budget.spend(pointer.size_bytes, _hole_bytes(handle, budget.left_hole_bytes)):
                continue
            if target.take(pointer, searched(pieces(file), budget.search, place.shown())):
                return True
            budget.left_wrong_bytes -= pointer.size_bytes
            budget.wrong.add(pointer, status)
    return False


def _hole_bytes(handle: int, limit_bytes: int) -> int:
    """The size of a file's holes, or more than the limit; rewinds the file."""
    size, at, found = os.fstat(handle).st_size, 0, 0
    try:
        for _ in range(_MOST_HOLES):
            if at >= size or found > limit_bytes:
                return found
            data = _find_data(handle, at, size)
            found += data - at
            at = data if data == size else os.lseek(handle, data, os.SEEK_HOLE)
        return limit_bytes + 1
    except OSError:
        # The filesystem does not report holes.
        return found
    finally:
        os.lseek(handle, 0, os.SEEK_SET)


def _find_data(handle: int, at: int, size: int) -> int:
    try:
        return os.lseek(handle, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            # Only a hole follows.
            return size
        raise
