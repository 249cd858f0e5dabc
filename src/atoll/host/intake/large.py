"""Brings out the Git LFS objects that commits of a capsule refer to.

A commit holds pointers only. The objects lie in the capsule's `.git/lfs/objects`, as files that an
agent can write: they are opened without following a link, and taken over only if their size and
SHA-256 are those of the pointer. Pointers are hostile input as well (`model/lfs.py`).

Hashing costs the owner time, and an object of any size costs an agent nothing if it is a hole. So
the bytes of holes and of wrong objects are bounded, and a wrong object is not hashed again while it
is unchanged.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from atoll.host import files
from atoll.host.beneath import TreeReader
from atoll.host.intake.refs import GIT_DIRECTORY
from atoll.host.intake.store import Store
from atoll.host.lfs import LfsStore, pieces
from atoll.host.quarantine import lines_of
from atoll.host.transfer import require_ids
from atoll.model.errors import StateError
from atoll.model.lfs import POINTER_BYTES, Pointer, parse_pointer
from atoll.model.units import render_size
from atoll.model.untrusted import InsidePath, Untrusted, find_path

SMALLEST_POINTER_BYTES = 80
"""No pointer is smaller."""
_PORTION = 50_000
"""How many blobs are read at once: at most 50 MB."""
MOST_OBJECTS = 100_000
MOST_BYTES = 32 << 30
MOST_WRONG_BYTES = 8 << 30
"""Of objects that are hashed in vain; so it is also the size of the largest object."""
MOST_HOLE_BYTES = 1 << 30
_MOST_HOLES = 1 << 16
_REMEMBERED_BYTES = 1 << 20
"""A smaller object is hashed again: that costs less than to remember it."""
_MOST_REMEMBERED = 10_000
_MISSING = (
    "a Git LFS pointer whose object is neither in the capsule nor in your repository; "
    "`git lfs fetch` may find it on the server"
)
_REFUSED = (
    "the Git LFS object in the capsule was not taken: it is not what its pointer says, cannot be "
    "read, or is over a limit"
)


class WrongObjects:
    """The objects that were hashed and are not what their pointers say, kept in a file of Atoll's
    own. A file is known by its inode, size and time of change, which no program inside can set.
    """

    def __init__(self, place: Path | None = None) -> None:
        """Without a place they are forgotten."""
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
                # Torn: everything is hashed again.
                self._known = {}
        return self._known


def _identity(pointer: Pointer, status: os.stat_result) -> tuple[str | int, ...]:
    return pointer.oid, status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns


class LargeBudget:
    """What one import may still cost the owner's machine, submodules included."""

    def __init__(self, size_bytes: int = 0, *, wrong: WrongObjects | None = None) -> None:
        """`size_bytes` is the capsule's disk limit; 0 if it has none."""
        self.left_bytes = min(size_bytes or MOST_BYTES, MOST_BYTES)
        self.left_wrong_bytes = MOST_WRONG_BYTES
        self.left_hole_bytes = MOST_HOLE_BYTES
        self.wrong = wrong or WrongObjects()

    def allows(self, size_bytes: int) -> bool:
        return size_bytes <= min(self.left_bytes, self.left_wrong_bytes)

    def spend(self, size_bytes: int, hole_bytes: int) -> bool:
        """Whether so much may be read; it counts whether or not the object is then taken."""
        if not self.allows(size_bytes) or hole_bytes > self.left_hole_bytes:
            return False
        self.left_bytes -= size_bytes
        self.left_hole_bytes -= hole_bytes
        return True


class LargeFiles(NamedTuple):
    """What came of the objects that new commits refer to; paths are for people."""

    brought: int = 0
    missing: tuple[str, ...] = ()
    """The objects of these are neither in the capsule nor in the owner's store."""
    refused: tuple[str, ...] = ()
    """The capsule has something in the place of these objects that was not taken over: it is not
    what the pointer says, cannot be read, or is too much.
    """

    def notes(self) -> tuple[str, ...]:
        """One sentence per kind of failure, for a warning."""
        kinds = ((self.missing, _MISSING), (self.refused, _REFUSED))
        return tuple(f"{_listed(paths)}: {why}" for paths, why in kinds if paths)


def _listed(paths: Sequence[str]) -> str:
    shown = ", ".join(f"`{path}`" for path in paths[:3])
    return f"{shown} and {len(paths) - 3} more" if len(paths) > 3 else shown


def find_pointers(
    store: Store, tips: Sequence[str], *, known: Sequence[str], most: int = MOST_OBJECTS
) -> dict[Pointer, InsidePath | None]:
    """The pointers in commits that `known` ones do not have, each with a path that it is at.

    Raises StateError when there are more than `most`.
    """
    require_ids(*tips, *known)
    # The tips may have been written a moment ago, and missing ones are passed over.
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


def _small_blobs(store: Store, names: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """(id, content) of those objects that may be pointers."""
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
    """(id, content) of the objects in what `cat-file --batch` printed."""
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
    """Copies objects to `target` that it does not have, each with its content checked. Returns the
    paths of those that no source has.
    """
    missing: list[str] = []
    for pointer, path in wanted:
        # An empty file has no object.
        if pointer.size_bytes == 0 or target.has(pointer):
            continue
        if not any(target.copy(pointer, source) for source in sources):
            missing.append(pointer.oid if path is None else path.shown())
    return tuple(dict.fromkeys(missing))


def bring_large_files(  # noqa: PLR0913 - two stores, and what may pass between them
    store: Store,
    reader: TreeReader,
    tips: Sequence[str],
    *,
    known: Sequence[str],
    at: InsidePath = GIT_DIRECTORY,
    root: InsidePath | None = None,
    budget: LargeBudget,
) -> LargeFiles:
    """Copies the LFS objects that commits refer to and the owner does not have.

    `at` is the capsule's git directory, `root` where its files are. Raises StateError for too
    many pointers, DriverError when a git or the disk fails.
    """
    target = LfsStore.of(store.repository, store.settings.lfs_storage)
    inside = at.child(b"lfs")
    if not tips or (reader.kind(inside) is None and not target.objects.is_dir()):
        return LargeFiles()
    try:
        return _bring(target, reader, find_pointers(store, tips, known=known), inside, root, budget)
    finally:
        with suppress(OSError):
            # Then they are hashed again, no more.
            budget.wrong.save()


def _bring(
    target: LfsStore,
    reader: TreeReader,
    pointers: Mapping[Pointer, InsidePath | None],
    inside: InsidePath,
    root: InsidePath | None,
    budget: LargeBudget,
) -> LargeFiles:
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
    return LargeFiles(brought, tuple(missing), tuple(refused))


def _in_files(root: InsidePath | None, path: InsidePath | None) -> list[InsidePath]:
    """Where the object may be besides: in the file that it was made of."""
    if path is None:
        return []
    return [path if root is None else InsidePath(root.raw + b"/" + path.raw)]


def _take(
    target: LfsStore,
    reader: TreeReader,
    pointer: Pointer,
    places: Sequence[InsidePath],
    budget: LargeBudget,
) -> bool:
    for place in places:
        handle = reader.find_file(place)
        if handle is None:
            continue
        with open(handle, "rb", buffering=0) as file:
            # Before it is read: whatever is written meanwhile changes the time.
            status = os.fstat(handle)
            if status.st_size != pointer.size_bytes or budget.wrong.knows(pointer, status):
                continue
            if not budget.spend(pointer.size_bytes, _hole_bytes(handle, budget.left_hole_bytes)):
                continue
            if target.take(pointer, pieces(file)):
                return True
            budget.left_wrong_bytes -= pointer.size_bytes
            budget.wrong.add(pointer, status)
    return False


def _hole_bytes(handle: int, limit_bytes: int) -> int:
    """How much of a file is holes, or more than the limit; its position is its beginning again."""
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
        # The filesystem does not say.
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
