"""Copies and hashes file contents by the cheapest method of the filesystem, and sets attributes.

Holes are preserved, and neither copying nor hashing reads them: a file of a terabyte with one block
of data costs one block.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Literal, NamedTuple

from atoll.host.process import pause
from atoll.host.tree.manifests import Root, is_gone, unreadable
from atoll.host.tree.thread_pool import WorkerThread, run_parallel
from atoll.keeper.handles import Opened
from atoll.model.errors import StateError
from atoll.model.names import printable

Method = Literal["reflink", "copy_file_range", "read-write"]
Tick = Callable[[int], None]
"""Called after every piece with the number of bytes copied; may raise to stop."""

_FICLONE = 0x40049409
_UNSUPPORTED = frozenset(
    {errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY, errno.EPERM, errno.ENOSYS}
)
# Large enough to be efficient, small enough to react to a stop soon.
_RANGE_BYTES = 8 * 2**20
_READ_BYTES = 2**20
_PIECE_BYTES = 2**17
_ZEROS = bytes(_PIECE_BYTES)
_DIGEST_BYTES = 16
# A filesystem without such attributes, or an attribute that has vanished.
_NO_ATTRIBUTE = frozenset({errno.EOPNOTSUPP, errno.ENODATA})
# EINVAL: the user namespace does not map this owner.
_NOT_OURS = frozenset({errno.EPERM, errno.EINVAL})
_ATTEMPTS = 4
# Two writes within one tick of the kernel's clock leave the same mtime.
_TICK_NS = 20_000_000
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Mover:
    """Copies contents; determines once, for all threads, which method works between two trees."""

    def __init__(self) -> None:
        self._ways: tuple[tuple[Method, _Way], ...] = (
            ("reflink", _clone),
            ("copy_file_range", _copy_ranges),
            ("read-write", _read_and_write),
        )
        self._used: dict[Method, int] = {}

    @property
    def method(self) -> Method:
        """The method that copied the most files."""
        return max(self._used, key=self._used.__getitem__, default="read-write")

    def move(
        self,
        source: int,
        target: int,
        tick: Tick,
        *,
        origin: str,
        status: os.stat_result | None = None,
        wants_digest: bool = False,
    ) -> CopyMethod:
        """Copies `source` to the empty `target`; returns the status that matches the copied bytes.

        `status` is from a recent `fstat` of `source`. Raises OSError, and StateError if `origin`
        keeps changing.
        """
        for _ in range(_ATTEMPTS):
            status = status or os.fstat(source)
            age_ns = time.time_ns() - status.st_mtime_ns
            if 0 <= age_ns < _TICK_NS:
                pause((_TICK_NS - age_ns) / 1e9)
            content = self._move_once(source, target, status, tick)
            after = os.fstat(source)
            if (after.st_mtime_ns, after.st_size) == (status.st_mtime_ns, status.st_size):
                return CopyMethod(
                    status, _digest_moved(content, target, tick) if wants_digest else ""
                )
            os.ftruncate(target, 0)
            status = None
        raise StateError(
            f"`{printable(origin)}` changes while it is being copied",
            hint="stop the process that writes to it, or exclude it: `project.never` in atoll.toml",
        )

    def move_live(self, source: int, target: int) -> tuple[os.stat_result, bool]:
        """As `move`, for a file that may be in use: copied once; returns the status from before,
        and whether it has changed.
        """
        status = os.fstat(source)
        self._move_once(source, target, status, lambda _: None)
        after = os.fstat(source)
        is_same = (after.st_mtime_ns, after.st_size) == (status.st_mtime_ns, status.st_size)
        return status, not is_same

    def _move_once(
        self, source: int, target: int, status: os.stat_result, tick: Tick
    ) -> bytes | None:
        """Returns the content if it was copied through memory in one piece."""
        if status.st_size == 0:
            return b""
        if status.st_size < _PIECE_BYTES and self._ways[0][0] != "reflink":
            # Cheaper than a copy in the kernel: no second read for the digest.
            return self._move_small(source, target, status, tick)
        for method, way in self._ways:
            try:
                way(source, target, status, tick)
            except OSError as error:
                if error.errno not in _UNSUPPORTED or method == "read-write":
                    raise
                # The method has worked before: only this file is unusual.
                if method not in self._used:
                    self._ways = tuple(pair for pair in self._ways if pair[0] != method)
                os.ftruncate(target, 0)
            else:
                self._used[method] = self._used.get(method, 0) + 1
                return None
        return None

    def _move_small(
        self, source: int, target: int, status: os.stat_result, tick: Tick
    ) -> bytes | None:
        if _is_sparse(status):
            _read_and_write(source, target, status, tick)
            content = None
        else:
            content = os.pread(source, status.st_size, 0)
            written = 0
            while written < len(content):
                written += os.pwrite(target, content[written:] if written else content, written)
            tick(written)
        self._used["read-write"] = self._used.get("read-write", 0) + 1
        return content


class CopyMethod(NamedTuple):
    """The result of copying a file."""

    status: os.stat_result
    digest: str
    """Empty if not requested."""


def _digest_moved(content: bytes | None, target: int, tick: Tick) -> str:
    if content is None:
        return digest(target, tick)
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


_Way = Callable[[int, int, os.stat_result, Tick], None]


def _clone(source: int, target: int, status: os.stat_result, tick: Tick) -> None:
    fcntl.ioctl(target, _FICLONE, source)
    tick(status.st_size)


def _copy_ranges(source: int, target: int, status: os.stat_result, tick: Tick) -> None:
    for start, end in _data(source, status):
        position = start
        while position < end:
            count = min(end - position, _RANGE_BYTES)
            moved = os.copy_file_range(source, target, count, position, position)
            if moved == 0:
                # The file shrank, which its stamp will show.
                break
            position += moved
            tick(moved)
    _end_with_hole(target, status)


def _read_and_write(source: int, target: int, status: os.stat_result, tick: Tick) -> None:
    for start, end in _data(source, status):
        position = start
        while position < end:
            piece = os.pread(source, min(end - position, _READ_BYTES), position)
            if not piece:
                break
            written = os.pwrite(target, piece, position)
            position += written
            tick(written)
    _end_with_hole(target, status)


def _end_with_hole(target: int, status: os.stat_result) -> None:
    if _is_sparse(status):
        os.ftruncate(target, status.st_size)


def _is_sparse(status: os.stat_result) -> bool:
    return status.st_blocks * 512 < status.st_size


def _data(handle: int, status: os.stat_result) -> Iterator[tuple[int, int]]:
    """The data segments of a file, without holes."""
    size = status.st_size
    if not _is_sparse(status):
        yield 0, size
        return
    position = 0
    while position < size:
        try:
            start = os.lseek(handle, position, os.SEEK_DATA)
            position = os.lseek(handle, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        yield start, min(position, size)


def digest(handle: int, tick: Tick) -> str:
    """The hexadecimal BLAKE2b (16 bytes) of a file's content; raises OSError.

    Aligned pieces of 128 KiB that are all zeros are not hashed; their offsets are added at the
    end. So the value depends on the content alone, whatever of it is holes, and a file without
    such a piece has the value of `b2sum -l 128`.
    """
    status = os.fstat(handle)
    if status.st_size < _PIECE_BYTES:
        return blake2b(os.pread(handle, status.st_size, 0), digest_size=_DIGEST_BYTES).hexdigest()
    state = blake2b(digest_size=_DIGEST_BYTES)
    gaps = []
    expected = 0
    for number in _pieces(handle, status):
        piece = os.pread(handle, _PIECE_BYTES, number * _PIECE_BYTES)
        tick(0)
        if piece == _ZEROS:
            continue
        if number > expected:
            gaps.append((expected, number))
        state.update(piece)
        expected = number + 1
    if expected * _PIECE_BYTES < status.st_size:
        gaps.append((expected, status.st_size // _PIECE_BYTES))
    if not gaps:
        return state.hexdigest()
    whole = blake2b(state.digest(), digest_size=_DIGEST_BYTES, person=b"atoll gaps")
    whole.update(repr((status.st_size, gaps)).encode())
    return whole.hexdigest()


def _pieces(handle: int, status: os.stat_result) -> Iterator[int]:
    """The numbers of the pieces with data, and of the last one if it is partial."""
    following = 0
    for start, end in _data(handle, status):
        first = max(start // _PIECE_BYTES, following)
        following = max(-(-end // _PIECE_BYTES), following)
        yield from range(first, following)
    whole, rest = divmod(status.st_size, _PIECE_BYTES)
    if rest and following <= whole:
        yield whole


def attributes(handle: int) -> dict[str, bytes]:
    """The extended attributes set by people and tools, without those of overlayfs."""
    found = {}
    try:
        for name in os.listxattr(handle):
            if name.startswith("user.") and not name.startswith("user.overlay."):
                found[name] = os.getxattr(handle, name)
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTE:
            raise
    return found


def settle(
    handle: int, status: os.stat_result, extended: Mapping[str, bytes], owner: tuple[int, int]
) -> None:
    """Gives a new file or directory, created by `owner`, the attributes of another.

    Extended attributes are dropped if the filesystem has none. A regular file never keeps a
    set-id bit: it may come from a capsule. A directory keeps its set-group-id bit, which only
    gives new files their group, if it keeps the group.
    """
    for name, value in extended.items():
        try:
            os.setxattr(handle, name, value)
        except OSError as error:
            if error.errno not in _NO_ATTRIBUTE:
                raise
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
    if owner != (status.st_uid, status.st_gid) or mode & (stat.S_ISUID | stat.S_ISGID):
        give_owner(handle, status)
        made = os.fstat(handle)
        if made.st_uid != status.st_uid:
            mode &= ~stat.S_ISUID
        if made.st_gid != status.st_gid:
            mode &= ~stat.S_ISGID
    os.fchmod(handle, mode)
    os.utime(handle, ns=(status.st_atime_ns, status.st_mtime_ns))


def give_owner(place: int | str, status: os.stat_result, *, within: int | None = None) -> None:
    """Changes owner and group to those of `status`, or the group alone, as permitted.

    `place` is a descriptor, or the name of a link in the directory `within`.
    """
    for user in (status.st_uid, -1):
        try:
            if within is None:
                os.chown(place, user, status.st_gid)
            else:
                os.chown(place, user, status.st_gid, dir_fd=within, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
        else:
            return


def find_file(name: str, *, within: int, origin: str) -> tuple[int, os.stat_result] | None:
    """Opens a regular file; None if it no longer exists. `origin` is its name in errors."""
    try:
        handle = os.open(name, _READ, dir_fd=within)
    except OSError as error:
        if is_gone(error):
            return None
        raise unreadable(origin, error) from error
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode):
        return handle, status
    os.close(handle)
    return None


def digest_entries(root: Path, paths: Iterable[str]) -> dict[str, str]:
    """The digests of regular files, as reported by a copy; others are left out."""
    digests: dict[str, str] = {}
    by_directory: dict[str, list[str]] = {}
    for path in paths:
        directory, _, name = path.rpartition("/")
        by_directory.setdefault(directory, []).append(name)

    def read(task: tuple[str, list[str]], worker: WorkerThread) -> None:
        handle = tree.find(task[0])
        if handle is None:
            return
        with Opened(handle) as directory:
            for name in task[1]:
                path = f"{task[0]}/{name}".lstrip("/")
                found = find_file(name, within=directory, origin=f"{root}/{path}")
                if found is not None:
                    with Opened(found[0]) as file:
                        digests[path] = _digest_of(file, worker, f"{root}/{path}")

    with Root(root) as tree:
        run_parallel(by_directory.items(), read)
    return digests


def _digest_of(handle: int, worker: WorkerThread, origin: str) -> str:
    try:
        return digest(handle, worker.tick)
    except OSError as error:
        raise unreadable(origin, error) from error
