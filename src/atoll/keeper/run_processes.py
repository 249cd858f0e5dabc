"""The processes of one run, as the procfs of their own pid namespace lists them.

The cost of listing all of `/proc` grows with the processes on the machine. A sandboxed run has a
pid namespace, and its procfs lists nothing else; no process can leave it.
"""

from __future__ import annotations

import os

from atoll.keeper import process_tree
from atoll.keeper.peer_check import find_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MOST_CHILDREN = 1 << 16
_FIRST = "1"
_PROCESSES = 258
"""Where the kernel lists the processes of a procfs, behind all other entries."""


class Members:
    """Of the run of the calling process, whose descendants they are.

    `shell` is the process around the walls, whose child is the first in the run's pid namespace;
    None without walls. Until there is that namespace, and where it has no procfs, `/proc` is read.
    """

    __slots__ = ("_root", "proc", "shell")

    def __init__(self, shell: int | None = None) -> None:
        self._root = os.getpid()
        self.shell = shell
        self.proc: int | None = None
        """A descriptor of the procfs of the run's pid namespace, once it was found."""

    def list(self) -> tuple[list[int], str]:
        """Their numbers, and the directory of the procfs in which they have these numbers."""
        if self.proc is None and self.shell is not None:
            self.proc = find_own_proc(self.shell)
        pids = [] if self.proc is None else numbers(self.proc)
        if pids:
            return pids, f"/proc/self/fd/{self.proc}"
        return process_tree.descendants(self._root), process_tree.PROC

    def close(self) -> None:
        if self.proc is not None:
            os.close(self.proc)
            self.proc = None


def numbers(proc: int, known: Collection[int] = ()) -> list[int]:
    """The processes in a procfs, by its descriptor; none if the last one has ended.

    Without the first, which is bwrap's own, and is hidden from those behind it. With some that are
    `known` to live, the many files that a procfs lists before its processes are passed over, if
    the kernel has its entries in the usual places.
    """
    try:
        if known:
            os.lseek(proc, _PROCESSES, os.SEEK_SET)
            found = _parse(os.listdir(proc))
            if found.issuperset(known):
                return list(found)
        os.lseek(proc, 0, os.SEEK_SET)
        return list(_parse(os.listdir(proc)))
    except OSError:
        return []


def _parse(names: list[str]) -> set[int]:
    return {int(name) for name in names if name.isdecimal() and name != _FIRST}


def find_own_proc(shell: int) -> int | None:
    """A descriptor of the procfs of the pid namespace that a child of `shell` is the first in.

    None if it is not mounted (yet), or if this kernel does not list children.
    """
    for child in _children(shell):
        try:
            proc = os.open(f"/proc/{child}/root/proc", _OPEN_DIRECTORY)
        except OSError:
            continue
        if _is_of(proc, child):
            return proc
        os.close(proc)
    return None


def _is_of(proc: int, first: int) -> bool:
    """Whether it is the procfs of the pid namespace of `first`, with a process in it.

    The kernel's own files are compared: before the sandbox is complete, another `/proc` is in its
    place.
    """
    wanted, ours = find_namespace(f"/proc/{first}", "pid"), find_namespace("/proc/self", "pid")
    if wanted is None or wanted == ours:
        return False
    found = (find_namespace(f"/proc/self/fd/{proc}/{pid}", "pid") for pid in numbers(proc))
    return next(filter(None, found), None) == wanted


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb", buffering=0) as file:
            return [int(number) for number in file.read(_MOST_CHILDREN).split()]
    except OSError:
        return []
