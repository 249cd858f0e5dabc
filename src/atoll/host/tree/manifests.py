"""Manifests: the entries of a directory tree as values, their changes and their size.

A walk never follows a symbolic link, is not recursive, and opens every directory by a descriptor
that refuses links. Paths are relative and separated by `/`; the root itself is never an entry.
"""

from __future__ import annotations

import errno
import gc
import marshal
import os
import shlex
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self

from atoll.host.beneath import open_by_parts
from atoll.host.files import write_atomic
from atoll.model.errors import PrerequisiteError, StateError
from atoll.model.names import printable

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# EINVAL: not a link any more; EXDEV: points outside of the tree.
_GONE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL, errno.EXDEV}
)


class Stamp(NamedTuple):
    """Distinguishes states of an entry without reading it."""

    mode: int
    """The complete `st_mode`: type and permissions."""
    size: int
    mtime_ns: int
    inode: int
    links: int
    target: str | None = None
    """The target of a symbolic link."""
    ctime_ns: int = 0

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)


Manifest = dict[str, Stamp]


class LeftOut(NamedTuple):
    path: str
    reason: str


class Scan(NamedTuple):
    entries: Manifest
    """Parents come first."""
    left_out: list[LeftOut]


class Difference(NamedTuple):
    changed: list[str]
    removed: list[str]
    """Only the topmost ones."""


class DiskUsage(NamedTuple):
    files: int
    """Everything except directories."""
    bytes: int
    """Allocated space, including directories; hard links count once."""


Skip = Callable[[str, "os.DirEntry[str]"], str | None]


def is_gone(error: OSError) -> bool:
    """Whether a listed entry no longer exists, or has changed its type."""
    return error.errno in _GONE


def unreadable(path: Path | str, error: OSError) -> StateError:
    shown = printable(os.fspath(path))
    if error.errno == errno.ENAMETOOLONG:
        return StateError(f"`{shown[:100]}…` is nested too deeply")
    hint = None
    if error.errno in {errno.EACCES, errno.EPERM}:
        quoted = printable(shlex.quote(os.fspath(path)))
        hint = f"chmod u+rX {quoted}, or exclude it: `project.never` in atoll.toml"
    return StateError(f"`{shown}` cannot be read: {error.strerror}", hint=hint)


def parents(path: str) -> Iterator[str]:
    """The parent directories of an entry, innermost first."""
    while path := path.rpartition("/")[0]:
        yield path


def scan(
    root: Path,
    *,
    below: Sequence[str] = ("",),
    skip: Skip | None = None,
    known: Manifest | None = None,
) -> Scan:
    """Everything in `root` at the paths `below` and under them, with their parents.

    An entry for which `skip` returns a reason is left out with everything below it; it is not
    called for `below` itself, nor for entries that are unchanged since `known`, an earlier scan.
    A missing `below`, or one behind a link, is left out. Raises StateError for a directory that
    cannot be listed, or whose path is too long.
    """
    found = Scan({}, [])
    for start in below:
        if start:
            _add_start(root, start, found)
        if not start or (start in found.entries and found.entries[start].is_directory):
            _scan_below(root, start, _Look(skip, known or {}), found)
    return found


def _add_start(root: Path, start: str, found: Scan) -> None:
    """Adds `start` and its parents, all or none."""
    parts = start.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        raise StateError(f"`{printable(start)}` is not a plain relative path")
    chain: Manifest = {}
    for path in (*reversed(list(parents(start))), start):
        place = f"{root}/{path}"
        try:
            status = os.lstat(place)
            target = os.readlink(place) if stat.S_ISLNK(status.st_mode) else None
        except OSError as error:
            if is_gone(error):
                return
            raise unreadable(place, error) from error
        chain[path] = stamp_of(status, target)
        if path != start and not chain[path].is_directory:
            return
    if kind := special_kind(chain[start].mode):
        found.left_out.append(LeftOut(start, kind))
    else:
        found.entries.update(chain)


def stamp_of(status: os.stat_result, target: str | None = None) -> Stamp:
    return Stamp(
        status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino, status.st_nlink, target,
        status.st_ctime_ns,
    )  # fmt: skip


def special_kind(mode: int) -> str | None:
    """The type of an entry that cannot be copied; None for files, directories and links."""
    return _SPECIAL.get(stat.S_IFMT(mode))


_SPECIAL = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a fifo",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class _Look(NamedTuple):
    skip: Skip | None
    known: Manifest


def _scan_below(root: Path, start: str, look: _Look, found: Scan) -> None:
    waiting = [start]
    with without_collector():
        while waiting:
            directory = waiting.pop()
            # No trailing slash: it would make the kernel follow a link.
            place = f"{root}/{directory or '.'}"
            handle = find_directory(place)
            if handle is None:
                continue
            try:
                waiting += _scan_directory(handle, directory, look, found)
            except OSError as error:
                raise unreadable(place, error) from error
            finally:
                os.close(handle)


def _scan_directory(handle: int, directory: str, look: _Look, found: Scan) -> list[str]:
    """Adds the entries of one directory; returns the directories in it."""
    # A hot loop over hundreds of thousands of entries: hence the local names, the numbers instead
    # of `stat.S_IS…`, and the records made without their constructor.
    entries, left_out = found
    skip, known = look.skip, look.known.get
    make, record = tuple.__new__, Stamp
    prefix = f"{directory}/" if directory else ""
    directories = []
    with os.scandir(handle) as listing:
        for entry in listing:
            path = prefix + entry.name
            try:
                status = entry.stat(follow_symlinks=False)
                mode = status.st_mode
                kind = mode & 0o170000
                target = os.readlink(entry.name, dir_fd=handle) if kind == 0o120000 else None
            except OSError as error:
                if is_gone(error):
                    continue
                raise
            stamp = (
                mode, status.st_size, status.st_mtime_ns, status.st_ino, status.st_nlink, target,
                status.st_ctime_ns,
            )  # fmt: skip
            before = known(path)
            if before != stamp:
                before = make(record, stamp)
                reason = _SPECIAL.get(kind) or (skip and skip(path, entry))
                if reason:
                    left_out.append(LeftOut(path, reason))
                    continue
            if kind == 0o040000:
                directories.append(path)
            entries[path] = before
    return directories


@contextmanager
def without_collector() -> Iterator[None]:
    """Disables garbage collection: there are no cycles, and it would visit every record often."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def find_directory(path: str) -> int | None:
    """Opens a directory; None if it no longer exists. Raises StateError without permission."""
    try:
        return os.open(path, _DIRECTORY)
    except OSError as error:
        if is_gone(error):
            return None
        raise unreadable(path, error) from error


class Root:
    """A tree whose directories are opened only at their real paths.

    Between a walk and a copy, any directory may be replaced by a link: the kernel's path of the
    descriptor shows it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(path, error) from error
        try:
            self._real = os.readlink(f"/proc/self/fd/{self.handle}").rstrip("/")
        except OSError as error:
            os.close(self.handle)
            raise PrerequisiteError(f"`/proc` cannot be read: {error.strerror}") from error

    def find(self, directory: str) -> int | None:
        """A new descriptor, or None if the directory is gone or behind a link."""
        if not directory:
            return os.dup(self.handle)
        try:
            handle = os.open(directory, _DIRECTORY, dir_fd=self.handle)
        except OSError as error:
            if is_gone(error):
                return None
            raise unreadable(self.path / directory, error) from error
        try:
            place = os.readlink(f"/proc/self/fd/{handle}")
        except OSError as error:
            os.close(handle)
            raise unreadable(self.path / directory, error) from error
        if place == f"{self._real}/{directory}":
            return handle
        os.close(handle)
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)


def difference(old: Manifest, new: Manifest, *, strict: bool = False) -> Difference:
    """The changes from `old` to `new`. Of a directory only the mode counts.

    With `strict`, for two walks of the same tree, inodes and ctimes of files count, too: many
    installers set constant mtimes. A copy has others than its source.
    """
    changed = [
        path
        for path, stamp in new.items()
        if (before := old.get(path)) != stamp and not _is_same(before, stamp, strict=strict)
    ]
    removed = [path for path in old if path not in new and _holds_directory(new, path)]
    return Difference(changed, removed)


def _is_same(old: Stamp | None, new: Stamp, *, strict: bool) -> bool:
    if old is None or old.mode != new.mode:
        return False
    if new.is_directory:
        return True
    if strict and (old.ctime_ns != new.ctime_ns or old.inode != new.inode):
        return False
    return old.mtime_ns == new.mtime_ns and old.size == new.size and old.target == new.target


def _holds_directory(manifest: Manifest, path: str) -> bool:
    """Whether the parent of `path` is still a directory: a file in its place hides everything."""
    parent = path.rpartition("/")[0]
    return not parent or (parent in manifest and manifest[parent].is_directory)


def usage(root: Path) -> DiskUsage:
    """The disk space of a tree; `walk` describes what is skipped."""
    files = size = 0
    linked: set[tuple[int, int]] = set()
    for _, status in walk(root):
        if not stat.S_ISDIR(status.st_mode):
            files += 1
            if status.st_nlink > 1:
                identity = (status.st_dev, status.st_ino)
                if identity in linked:
                    continue
                linked.add(identity)
        size += status.st_blocks * 512
    return DiskUsage(files, size)


def walk(root: Path, *, limit: int | None = None) -> Iterator[tuple[str, os.stat_result]]:
    """Every entry below `root`, sorted within a directory; at most `limit`.

    Unreadable directories and vanished entries are skipped: this is for summaries, which must not
    fail on what an agent creates.
    """
    left = sys.maxsize if limit is None else limit
    waiting = [""]
    try:
        top = os.open(f"{root}/.", _DIRECTORY)
    except OSError as error:
        if is_gone(error) or error.errno == errno.EACCES:
            return
        raise unreadable(root, error) from error
    try:
        while waiting and left > 0:
            directory = waiting.pop()
            prefix = f"{directory}/" if directory else ""
            found = _statuses(top, directory, left)
            left -= len(found)
            for name, status in found:
                yield prefix + name, status
            waiting += [
                prefix + name for name, status in reversed(found) if stat.S_ISDIR(status.st_mode)
            ]
    finally:
        os.close(top)


def _statuses(top: int, directory: str, limit: int) -> list[tuple[str, os.stat_result]]:
    try:
        handle = open_by_parts(top, os.fsencode(directory), _DIRECTORY)
    except OSError as error:
        if is_gone(error) or error.errno in {errno.EACCES, errno.ENAMETOOLONG}:
            return []
        raise unreadable(directory, error) from error
    found = []
    try:
        with os.scandir(handle) as listing:
            for entry in islice(listing, limit):
                with suppress(FileNotFoundError, PermissionError):
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
    finally:
        os.close(handle)
    return sorted(found)


# Version 1 had no ctimes, so changes may be undetected: everything is copied again.
_HEADER = b"atoll manifest 2\n"
_DIGEST_BYTES = 16


def save_manifest(path: Path, manifest: Manifest) -> None:
    # By columns: marshal has tuples but no records, and this is the fastest encoding.
    columns = tuple(zip(*manifest.values(), strict=True))
    # Version 2 is the last that does not search for repeated objects, of which there are none.
    content = marshal.dumps((tuple(manifest), columns), 2)
    write_atomic(path, _HEADER + _digest(content) + content)


def load_manifest(path: Path) -> Manifest:
    """Raises StateError for a file that is missing, damaged or from another version."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StateError(f"the manifest `{path}` cannot be read: {error.strerror}") from error
    if not data.startswith(_HEADER):
        raise StateError(f"`{path}` is not a manifest that this version of Atoll supports")
    start = len(_HEADER) + _DIGEST_BYTES
    content = memoryview(data)[start:]
    # Checked first: damaged content could crash the interpreter.
    if data[len(_HEADER) : start] != _digest(content):
        raise StateError(f"the manifest `{path}` is damaged")
    with without_collector():
        names, columns = marshal.loads(content)  # noqa: S302 - it is as this module wrote it
        # As `Stamp._make`, but without a Python call for each.
        stamps = map(partial(tuple.__new__, Stamp), zip(*columns, strict=True))
        return dict(zip(names, stamps, strict=True))


def _digest(content: bytes | memoryview) -> bytes:
    return blake2b(content, digest_size=_DIGEST_BYTES).digest()
