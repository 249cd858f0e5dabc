"""What processes hold through descriptors and mappings alone: files without a name, and memfds.

All threads of a process share its descriptors: a capsule cannot give one a table of its own.

A file that was unlinked while it is open, or mapped, still takes its space, and no walk through a
tree finds it. Law: what is read here belongs to processes that may be hostile, so that the work of
one count is bounded, and a capsule that exceeds the bound exceeds every limit.
"""

from __future__ import annotations

import os
import stat

from atoll.keeper import process_tree
from atoll.keeper.handles import Opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_LIMIT_ENTRIES = 200_000
"""Descriptors and mappings of all processes together."""
_LIMIT_IN_FLIGHT = 1_000
"""Descriptors that were sent over sockets and not received yet, which cannot be inspected."""
_WATCHES = "/proc/sys/fs/epoll/max_user_watches"
_PART = 4
"""Of what a user's processes may watch by epoll together, one run has a quarter at most."""
_EPOLL = "anon_inode:[eventpoll]"
_MAPS_BYTES = 16 << 20
_DELETED = b" (deleted)"
_IN_FLIGHT = b"scm_fds:"


class DescriptorCount:
    """The bytes of files without a name, on disk and in memory, each file counted once.

    Memory also counts the contents of in-memory filesystems that only these processes have.
    """

    __slots__ = (
        "_entries", "_found", "_in_flight", "_memory", "_proc", "_seen", "_tmpfs_bytes",
        "_watches", "is_exceeded",
    )  # fmt: skip

    def __init__(self, proc: str = process_tree.PROC) -> None:
        """`proc`: the procfs that knows the processes by the numbers that `take` gets."""
        self._proc = proc
        self._found: dict[tuple[int, int], int] = {}
        own = os.getpid()
        self._memory = {*_tmpfs_mounts(f"{process_tree.PROC}/{own}"), *_MEMFD_DEVICE}
        self._seen = {_mount_namespace(f"{process_tree.PROC}/{own}")}
        self._tmpfs_bytes = 0
        self._entries = 0
        self._in_flight = 0
        self._watches = 0
        self.is_exceeded = False
        """Whether there was more than can be counted."""

    @property
    def disk_bytes(self) -> int:
        return sum(size for (device, _), size in self._found.items() if device not in self._memory)

    @property
    def memory_bytes(self) -> int:
        """Files without a name in a tmpfs of their own are part of what is used there."""
        memfds = sum(size for (device, _), size in self._found.items() if device in _MEMFD_DEVICE)
        return memfds + self._tmpfs_bytes

    def take(self, pids: Collection[int]) -> None:
        """Count what these processes hold; those that end meanwhile, or are not ours, are left."""
        for pid in pids:
            place = f"{self._proc}/{process_tree.living_thread(pid, self._proc)}"
            self._take_filesystems(place)
            self._take_descriptors(place)
            self._take_mappings(place)
            if self.is_exceeded:
                return

    def _take_filesystems(self, process: str) -> None:
        namespace = _mount_namespace(process)
        if namespace in self._seen:
            return
        self._seen.add(namespace)
        for device, places in _tmpfs_mounts(process).items():
            if device not in self._memory:
                self._memory.add(device)
                self._tmpfs_bytes += _used_bytes(f"{process}/root", places, device)

    def _take_descriptors(self, process: str) -> None:
        count, epolls = 0, 0
        for name in _names(f"{process}/fd"):
            if not self._may_go_on():
                return
            count += 1
            try:
                found = os.stat(f"{process}/fd/{name}")
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
                self._add(found)
            elif stat.S_ISSOCK(found.st_mode):
                self._in_flight += _count_in_flight(f"{process}/fdinfo/{name}")
                self.is_exceeded |= self._in_flight > _LIMIT_IN_FLIGHT
            elif not stat.S_IFMT(found.st_mode):
                epolls += _link(f"{process}/fd/{name}") == _EPOLL
        # Each of them watches a descriptor once at most; to list them all would take too long.
        self._watches += count * epolls
        self.is_exceeded |= self._watches > _LIMIT_WATCHES

    def _take_mappings(self, process: str) -> None:
        for line in _read(f"{process}/maps", _MAPS_BYTES).splitlines():
            if not self._may_go_on():
                return
            if not line.endswith(_DELETED):
                continue
            span, _, _, device, inode, *_ = line.split(None, 5)
            major, _, minor = device.partition(b":")
            key = (os.makedev(int(major, 16), int(minor, 16)), int(inode))
            # What is mapped of memory is part of what the process uses itself.
            if key in self._found or key[0] in self._memory:
                continue
            try:
                self._add(os.stat(f"{process}/map_files/{_unpadded(span)}"))
            except OSError:
                # Only root can read it; the mapped size is the upper bound.
                first, _, last = span.partition(b"-")
                self._found[key] = int(last, 16) - int(first, 16)

    def _add(self, found: os.stat_result) -> None:
        if found.st_nlink == 0:
            self._found[found.st_dev, found.st_ino] = found.st_blocks * 512

    def _may_go_on(self) -> bool:
        self._entries += 1
        self.is_exceeded |= self._entries > _LIMIT_ENTRIES
        return not self.is_exceeded


def _tmpfs_mounts(process: str) -> dict[int, list[str]]:
    """The tmpfs mounts that a process sees: paths by device."""
    found: dict[int, list[str]] = {}
    for line in _read(f"{process}/mountinfo", _MAPS_BYTES).splitlines():
        mount, _, filesystem = line.partition(b" - ")
        if filesystem.startswith(b"tmpfs "):
            fields = mount.split()
            major, _, minor = fields[2].partition(b":")
            device = os.makedev(int(major), int(minor))
            found.setdefault(device, []).append(os.fsdecode(fields[4]))
    return found


def _mount_namespace(process: str) -> int:
    try:
        return os.stat(f"{process}/ns/mnt").st_ino
    except OSError:
        return 0


def _used_bytes(root: str, places: list[str], device: int) -> int:
    """What is used of a filesystem, by the first of its mounts that is there.

    While bwrap builds a sandbox it changes its root, so that a path may lead to another filesystem,
    such as that of the host's disk.
    """
    for place in places:
        try:
            with Opened(os.open(root + place, os.O_PATH | os.O_CLOEXEC)) as handle:
                if os.fstat(handle).st_dev == device:
                    found = os.statvfs(handle)
                    return (found.f_blocks - found.f_bfree) * found.f_frsize
        except OSError:
            continue
    return 0


def _find_memfd_device() -> frozenset[int]:
    try:
        handle = os.memfd_create("atoll")
    except OSError:
        return frozenset()
    try:
        return frozenset({os.fstat(handle).st_dev})
    finally:
        os.close(handle)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _count_in_flight(path: str) -> int:
    for line in _read(path, 4096).splitlines():
        if line.startswith(_IN_FLIGHT):
            return int(line.split()[1])
    return 0


def _unpadded(span: bytes) -> str:
    """A range as `map_files` names it, without leading zeros."""
    first, _, last = span.partition(b"-")
    return f"{int(first, 16):x}-{int(last, 16):x}"


def _names(directory: str) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                yield entry.name
    except OSError:
        return


def _read(path: str, size: int) -> bytes:
    """At most `size` bytes; nothing if the process has ended or may not be examined."""
    pieces: list[bytes] = []
    try:
        with open(path, "rb", buffering=0) as file:
            while size > 0 and (piece := file.read(min(size, 1 << 16))):
                pieces.append(piece)
                size -= len(piece)
    except OSError:
        return b""
    return b"".join(pieces)


_MEMFD_DEVICE = _find_memfd_device()
_LIMIT_WATCHES = int(_read(_WATCHES, 32) or 1 << 20) // _PART
