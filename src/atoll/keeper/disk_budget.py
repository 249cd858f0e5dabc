"""The disk limit of a capsule: measured by walks through its directory, as few as possible.

A check is cheap, independent of what the capsule does. A walk is done in parts, and only when the
free space of the filesystem shows that the budget may be exceeded.
"""

from __future__ import annotations

import errno
import os
import stat

from atoll.keeper import process_tree
from atoll.keeper.descriptors import DescriptorCount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator

    from atoll.keeper.watchdog import Activity

_SLICE_ENTRIES = 2_000
_LIMIT_ENTRIES = 500_000
_STALE_S = 60.0
"""Other processes may have freed what the capsule used meanwhile, which hides it in the sums."""
_IDLE_STALE_S = 600.0
"""How much longer a walk is valid for processes that have been idle since."""
_PARTS = 12
"""This many names of full length fit into one path."""
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class Free:
    """Free space of a filesystem. One that creates inodes on demand reports no entries."""

    __slots__ = ("entries", "size_bytes")

    def __init__(self, size_bytes: int, entries: int) -> None:
        self.size_bytes = size_bytes
        self.entries = entries

    def is_below(self, other: Free) -> bool:
        return self.size_bytes < other.size_bytes or self.entries < other.entries

    def most(self, other: Free) -> Free:
        return Free(max(self.size_bytes, other.size_bytes), max(self.entries, other.entries))

    def raised(self, before: Free, now: Free) -> Free:
        """By as much as there is now more than before; never lowered."""
        return Free(
            self.size_bytes + max(0, now.size_bytes - before.size_bytes),
            self.entries + max(0, now.entries - before.entries),
        )


def find_free(place: str | int) -> Free:
    """On the filesystem of a path or a descriptor, with what is kept for root."""
    status = os.statvfs(place)
    return Free(status.f_bfree * status.f_frsize, status.f_ffree)


class DiskBudget:
    """How much a directory, such as a capsule's upper layer, may hold: bytes and entries.

    Compared with the free space that the filesystem has lost since the last walk. Only when that
    exceeds the budget, or after a while, the directory is walked again, a part at each check.
    """

    __slots__ = (
        "_activity",
        "_directory",
        "_is_due",
        "_last",
        "_limit_bytes",
        "_limit_entries",
        "_slice",
        "_stale_at",
        "_walk",
    )

    def __init__(
        self,
        directory: str,
        limit_bytes: int | None,
        *,
        limit_entries: int = _LIMIT_ENTRIES,
        slice_entries: int = _SLICE_ENTRIES,
    ) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._limit_entries = limit_entries
        self._slice = slice_entries
        self._walk: _Walk | None = None
        self._last: _Walk | None = None
        self._stale_at = 0.0
        self._is_due = False
        self._activity: Activity | None = None

    def expire(self) -> None:
        """Walk at the next check: free space has shrunk."""
        self._is_due = True

    @property
    def used_bytes(self) -> int:
        """As of the last complete walk."""
        return 0 if self._last is None else self._last.used_bytes

    @property
    def least_free(self) -> Free | None:
        """With less than this the directory has to be walked again; None before the first walk."""
        return None if self._last is None else self._least_free(self._last)

    def open_directory(self) -> int:
        return os.open(self._directory, _OPEN_DIRECTORY)

    @property
    def is_walking(self) -> bool:
        return self._walk is not None

    def check(
        self,
        now: float,
        pids: Collection[int] = (),
        proc: str = process_tree.PROC,
        activity: Activity | None = None,
    ) -> str | None:
        """Which budget is exceeded: `disk`, `inodes` or none. OSError without the directory.

        Files without a name that these processes hold count as if they were in the directory.
        With their `activity`, one walk is enough for as long as they do nothing.
        """
        if self._walk is None:
            is_idle = activity is not None and activity.is_idle_since(self._activity)
            stale_at = self._stale_at + (_IDLE_STALE_S if is_idle else 0)
            is_known = self._last is not None and not self._is_due and now < stale_at
            if is_known and self._last is not None and not self._seems_over(self._last):
                return None
            self._is_due = False
            self._walk = _Walk(self._directory)
            self._activity = activity
        walk = self._walk
        is_complete = walk.go_on(self._slice)
        verdict = self._verdict(walk)
        if verdict is None and not is_complete:
            return None
        if verdict is None:
            walk.add_unnamed(pids, proc)
            verdict = self._verdict(walk)
        walk.close()
        self._walk = None
        self._stale_at = now + _STALE_S
        if self._last is None or not walk.is_blind:
            self._last = walk
        elif verdict is None and self._seems_over(self._last):
            # What was closed to the walk counts as it seems: else closing it were a way out.
            verdict = "disk"
        return verdict

    def _verdict(self, walk: _Walk) -> str | None:
        if self._limit_bytes is not None and (
            walk.used_bytes > self._limit_bytes or walk.is_uncountable
        ):
            return "disk"
        # A tree so deep that each step is expensive is treated like one with too many entries.
        if walk.entries > self._limit_entries or walk.cost > 4 * self._limit_entries:
            return "inodes"
        return None

    def _seems_over(self, last: _Walk) -> bool:
        free = find_free(self._directory)
        if free.is_below(self._least_free(last)):
            return True
        # What others have freed must not hide what the capsule takes from now on.
        last.free = last.free.most(free)
        return False

    def _least_free(self, last: _Walk) -> Free:
        size = 0
        if self._limit_bytes is not None:
            size = last.used_bytes + last.free.size_bytes - self._limit_bytes
        entries = last.entries + last.free.entries - self._limit_entries
        return Free(max(0, size), max(0, entries))


class _Walk:
    """A sum over a tree that may be changed by an enemy meanwhile, made in parts."""

    __slots__ = (
        "_linked", "_root", "_steps", "cost", "entries", "free", "is_blind", "is_uncountable",
        "used_bytes",
    )  # fmt: skip

    def __init__(self, directory: str) -> None:
        self.free = find_free(directory)
        self._root = os.open(directory, _OPEN_DIRECTORY)
        self._linked: set[int] = set()
        self.used_bytes = self.entries = self.cost = 0
        self.is_blind = False
        self.is_uncountable = False
        self._steps = self._walk()

    def go_on(self, cost: int) -> bool:
        """Walk until `cost` is spent; True if nothing is left to visit."""
        until = self.cost + cost
        for spent in self._steps:
            self.cost += spent
            if self.cost >= until:
                return False
        return True

    def close(self) -> None:
        self._steps.close()
        self._linked.clear()
        os.close(self._root)

    def add_unnamed(self, pids: Collection[int], proc: str) -> None:
        """Add the files that these processes hold and that have no name any more."""
        census = DescriptorCount(proc)
        census.take(pids)
        self.used_bytes += census.disk_bytes
        self.is_uncountable = census.is_exceeded

    def _walk(self) -> Generator[int, None, None]:
        device = os.fstat(self._root).st_dev
        # Directories as links to their parents: whole paths could fill our memory.
        pending: list[_Node | None] = [None]
        while pending:
            node = pending.pop()
            parts = _parts(node)
            yield 1 + len(parts) // _PARTS
            handle = self._open(parts)
            if handle is None:
                continue
            try:
                for name, status in self._entries(handle):
                    self._count(status)
                    if stat.S_ISDIR(status.st_mode) and status.st_dev == device:
                        pending.append(_Node(node, name))
                    yield 1
            finally:
                os.close(handle)

    def _open(self, parts: list[str]) -> int | None:
        """In steps that are short enough for the kernel, and never through a link at their end."""
        handle = os.dup(self._root)
        for start in range(0, len(parts), _PARTS):
            inner = "/".join(parts[start : start + _PARTS])
            try:
                following = os.open(inner, _OPEN_DIRECTORY, dir_fd=handle)
            except OSError as error:
                self.is_blind |= error.errno not in _GONE
                return None
            finally:
                os.close(handle)
            handle = following
        return handle

    def _entries(self, handle: int) -> Iterator[tuple[str, os.stat_result]]:
        try:
            with os.scandir(handle) as listing:
                for entry in listing:
                    try:
                        yield entry.name, entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
        except OSError:
            self.is_blind = True

    def _count(self, status: os.stat_result) -> None:
        self.entries += 1
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if status.st_ino in self._linked:
                return
            self._linked.add(status.st_ino)
        self.used_bytes += status.st_blocks * 512


class _Node:
    __slots__ = ("name", "parent")

    def __init__(self, parent: _Node | None, name: str) -> None:
        self.parent = parent
        self.name = name


def _parts(node: _Node | None) -> list[str]:
    parts = []
    while node is not None:
        parts.append(node.name)
        node = node.parent
    return parts[::-1]
