"""Free space on a filesystem: whether and why it is exhausted, and a reserve for that case."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

SHORTAGE = frozenset({errno.ENOSPC, errno.EDQUOT})
_WORDS = ("no space left", "disk quota exceeded", "disk is full", "out of diskspace")
"""Messages of the kernel, as git and SQLite repeat them."""
_LEAST_BYTES = 1 << 20
_LEAST_INODES = 32
_TRIED_BYTES = 64 << 10


class Shortage(NamedTuple):
    """What a filesystem lacks, and the commands that show it."""

    message: str
    hint: str


def nearest(path: Path) -> Path:
    """The path itself, or its nearest existing parent."""
    return next((place for place in (path, *path.parents) if place.exists()), Path("/"))


def mount_point(path: Path) -> Path:
    """The mount point of the filesystem that holds a path."""
    place = Path(os.path.realpath(nearest(path)))
    while place != place.parent and not os.path.ismount(place):
        place = place.parent
    return place


def is_read_only(path: Path) -> bool:
    """Whether the filesystem that holds a path is mounted read-only."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def is_shortage(error: BaseException) -> bool:
    """Whether an error, or one of its causes, reports a lack of space."""
    return has_shortage_code(error) or any(
        words in str(seen).lower() for seen in _causes(error) for words in _WORDS
    )


def has_shortage_code(error: BaseException) -> bool:
    """As `is_shortage`, by error codes alone: a message may contain arbitrary file names."""
    return any(isinstance(seen, OSError) and seen.errno in SHORTAGE for seen in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes, each once: the chain may be a cycle."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def find_shortage(path: Path) -> Shortage | None:
    """What is exhausted at `path`: blocks, inodes or the user's quota; None if nothing is."""
    place = nearest(path)
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    if found.f_files > 0 and found.f_favail < _LEAST_INODES:
        return _shortage(place, "has no inodes left", "df -i '{}'")
    if found.f_bavail * found.f_frsize < _LEAST_BYTES:
        return _shortage(place, "is full", "df -h '{}'")
    failed = _try_file(place)
    if failed == errno.EDQUOT:
        return _shortage(place, "accepts no more files of this user: quota exceeded", "quota")
    if failed == errno.ENOSPC:
        return _shortage(place, "is full", "df -h '{0}'; df -i '{0}'")
    return None


def _shortage(place: Path, what: str, look: str) -> Shortage:
    mount = mount_point(place)
    hint = f"{look.format(mount)}; remove files there; atoll gc"
    return Shortage(f"the filesystem at `{mount}` {what}", hint)


def _try_file(place: Path) -> int | None:
    """The error of creating a small unnamed file; None if it succeeds or cannot be tried."""
    try:
        handle = os.open(place, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return error.errno if error.errno in SHORTAGE else None
    try:
        os.posix_fallocate(handle, 0, _TRIED_BYTES)
    except OSError as error:
        return error.errno if error.errno in SHORTAGE else None
    finally:
        os.close(handle)
    return None


class Reserve:
    """Files that reserve space for commands that free space: two halves of blocks and inodes.

    A command that frees space, or may do so, releases the first half. The second half is for the
    database alone: it is released when a transaction needs it and the first did not suffice.
    """

    SIZE_BYTES = 2 << 20
    INODES = 32
    HALVES = ("first", "second")
    _NEEDED = 8
    """It is created if this many times its size is free."""

    def __init__(self, home: Path) -> None:
        self._place = home / "reserve"

    def release(self, *, everything: bool, needed_bytes: int = 0) -> bool:
        """Releases one half at a time, while there is a shortage or less than `needed_bytes`;
        returns whether anything was released.
        """
        released = False
        for half in self.HALVES if everything else self.HALVES[:1]:
            if not self._place.is_dir() or not self._is_short(needed_bytes):
                break
            for path in self._place.glob(f"{half}-*"):
                with suppress(OSError):
                    path.unlink()
                    released = True
        return released

    def _is_short(self, needed_bytes: int) -> bool:
        if find_shortage(self._place) is not None:
            return True
        found = os.statvfs(self._place)
        return found.f_bavail * found.f_frsize < needed_bytes

    def ensure(self) -> None:
        """Creates the missing halves if there is plenty of space. Cheap if none is missing."""
        for half in self.HALVES:
            if not os.path.lexists(self._place / f"{half}-space") and self._has_plenty():
                with suppress(OSError):
                    self._make(half)

    def _has_plenty(self) -> bool:
        found = os.statvfs(nearest(self._place))
        is_roomy = found.f_bavail * found.f_frsize >= self._NEEDED * self.SIZE_BYTES
        return is_roomy and (found.f_files == 0 or found.f_favail >= self._NEEDED * self.INODES)

    def _make(self, half: str) -> None:
        self._place.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        for number in range(self.INODES - 1):
            os.close(os.open(self._place / f"{half}-{number}", flags, 0o600))
        path = self._place / f"{half}-space"
        handle = os.open(path, flags, 0o600)
        try:
            os.posix_fallocate(handle, 0, self.SIZE_BYTES)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(handle)
