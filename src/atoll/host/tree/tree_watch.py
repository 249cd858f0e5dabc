"""Watches all directories of a checkout with inotify, and records the changed paths.

The kernel queues an event before the call that caused it returns. So draining the queue after a
request has arrived yields every change that was made before the request.

Inotify does not report writes through a memory map, writes through a hard link in a directory that
is not watched, or changes by other machines on a network filesystem. A walk of the tree finds the
first two; network filesystems are not watched.

Whenever the record may be incomplete, the watch ends (`WatchLost`).
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

from atoll.host import kernel

LIMIT = 30_000
"""The maximum number of watched directories, for all projects together."""
_SHARE = 4
"""At most this fraction (1/n) of the user's watches is used."""
_PATHS = 1_000
_READ_BYTES = 1 << 16
_LOCAL = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "tmpfs", "xfs", "zfs"})
_LIMIT_FILE = Path("/proc/sys/fs/inotify/max_user_watches")

_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_UNMOUNT, _OVERFLOW, _IGNORED, _IS_DIRECTORY = 0x2000, 0x4000, 0x8000, 0x40000000
_WATCHED = _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_WATCHED |= _DELETE_SELF | _MOVE_SELF
_EVENT = struct.Struct("=iIII")


class WatchLost(Exception):  # noqa: N818 - not an error: the caller walks the tree instead
    """The tree cannot be watched, or changes may have been missed."""


class WatchedPaths(NamedTuple):
    position: int
    """The position of this report: pass it to the next `changes`."""
    paths: tuple[str, ...] | None
    """Changed, created or removed paths, directories with a trailing slash; None if there are too
    many to be recorded, or if it is too long ago."""


def watch_limit() -> int:
    """How many directories may be watched: leaves most watches to the user's other programs."""
    try:
        allowed = int(_LIMIT_FILE.read_text())
    except (OSError, ValueError):
        return 0
    return min(LIMIT, allowed // _SHARE)


class TreeWatch:
    """A watch on every directory of a tree except `.git`. Not thread-safe."""

    def __init__(self, root: str, *, limit: int, skipped: tuple[str, ...] = ()) -> None:
        """`skipped` are absolute paths of directories that are not part of the tree.

        Raises WatchLost if the tree cannot be watched.
        """
        self._root = os.path.realpath(root)
        self._limit = limit
        self._skipped = frozenset(map(os.path.realpath, skipped))
        self._paths: dict[int, str] = {}
        self._changed: dict[str, int] = {}
        self._known_from = 0
        """Before this position, the record is incomplete."""
        self.position = 0
        require_local(self._root)
        try:
            self.fd = kernel.new_inotify()
        except OSError as error:
            raise WatchLost(f"inotify: {error.strerror}") from error
        try:
            self._identity = self._identify()
            self._add("")
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """The number of watched directories."""
        return len(self._paths)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def changes(self, since: int) -> WatchedPaths:
        """The changes after the position `since`, up to now; raises WatchLost."""
        self.drain()
        if since < self._known_from or since > self.position:
            return WatchedPaths(self.position, None)
        return WatchedPaths(
            self.position, tuple(p for p, at in self._changed.items() if at > since)
        )

    def drain(self) -> bool:
        """Reads all queued events; returns whether there were any. Raises WatchLost."""
        before = self.position
        while True:
            try:
                data = os.read(self.fd, _READ_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                raise WatchLost(f"inotify: {error.strerror}") from error
            self._read(data)
        if self._identify() != self._identity:
            raise WatchLost(f"`{self._root}` has been replaced by another directory")
        require_local(self._root)
        return self.position > before

    def _identify(self) -> tuple[int, int]:
        try:
            status = os.lstat(self._root)
        except OSError as error:
            raise WatchLost(f"`{self._root}`: {error.strerror}") from error
        return status.st_dev, status.st_ino

    def _read(self, data: bytes) -> None:
        start = 0
        while start < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, start)
            start += _EVENT.size
            name = os.fsdecode(data[start : start + length].rstrip(b"\0"))
            start += length
            self._note(number, mask, name)

    def _note(self, number: int, mask: int, name: str) -> None:
        if mask & (_OVERFLOW | _UNMOUNT):
            raise WatchLost("events were lost" if mask & _OVERFLOW else "it was unmounted")
        directory = self._paths.get(number)
        if mask & _IGNORED:
            self._paths.pop(number, None)
            return
        if directory is None:
            return
        self.position += 1
        if not name and not directory and mask & (_DELETE_SELF | _MOVE_SELF):
            raise WatchLost(f"`{self._root}` was moved or removed")
        path = f"{directory}/{name}".strip("/")
        if path == ".git":
            # Its attributes change with every commit.
            return
        if mask & _IS_DIRECTORY or not name:
            if mask & _MOVED_FROM:
                # Its watches would continue to report its former path.
                raise WatchLost(f"`{path}` was moved")
            if mask & (_CREATE | _MOVED_TO):
                self._add(path)
            path = f"{path}/"
        if len(self._changed) >= _PATHS and path not in self._changed:
            # Requests for an earlier position need a walk.
            self._changed.clear()
            self._known_from = self.position
        else:
            self._changed[path] = self.position

    def _add(self, start: str) -> None:
        """Watches a directory and all below it. Entries created meanwhile are found in a listing or
        reported by the watch, which is added first.
        """
        waiting = [start]
        while waiting:
            directory = waiting.pop()
            place = f"{self._root}/{directory}".rstrip("/")
            if directory == ".git" or place in self._skipped:
                continue
            try:
                self._paths[kernel.watch_directory(self.fd, place, _WATCHED)] = directory
                waiting += self._directories(place, directory)
            except (FileNotFoundError, NotADirectoryError):
                # Removed again, which its parent's watch reports.
                continue
            except OSError as error:
                raise WatchLost(f"`{place}` cannot be watched: {error.strerror}") from error
            if len(self._paths) > self._limit:
                raise WatchLost(f"more than {self._limit:,} directories")

    def _directories(self, place: str, directory: str) -> list[str]:
        with os.scandir(place) as listing:
            found = [entry.name for entry in listing if entry.is_dir(follow_symlinks=False)]
        return [f"{directory}/{name}".lstrip("/") for name in found]


def require_local(root: str) -> None:
    """Raises WatchLost unless `root` is on one local filesystem without mounts below it."""
    kind, longest = "", -1
    for point, name in _mounts():
        if point.startswith(f"{root}/"):
            raise WatchLost(f"`{point}` is a mount point")
        if (root == point or root.startswith(f"{point.rstrip('/')}/")) and len(point) >= longest:
            kind, longest = name, len(point)
    if kind not in _LOCAL:
        raise WatchLost(f"the filesystem `{kind}` may not report all changes")


def _mounts() -> list[tuple[str, str]]:
    """(mount point, type) of all mounts; later ones hide earlier ones."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError as error:
        raise WatchLost(f"/proc: {error.strerror}") from error
    found = []
    for line in lines:
        before, _, after = line.partition(b" - ")
        fields, kind = before.split(), after.split()[:1]
        if len(fields) > 4 and kind:
            point = fields[4].decode("unicode_escape").encode("latin-1")
            found.append((os.fsdecode(point), kind[0].decode()))
    return found
