"""Limits on hosts whose kernel does not enforce them: checked often.

A check is cheap, independent of what the capsule does. Expensive steps (dividing up shared memory,
counting open files) are done only when a cheap sum requires it, and take a small share of the time.

Not counted as memory: the contents of pipes and socket buffers.
"""

from __future__ import annotations

import os
import time

from atoll.keeper import process_tree
from atoll.keeper.descriptors import DescriptorCount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from atoll.model.enclosure import Limits

_PAGE = os.sysconf("SC_PAGE_SIZE")
_REST = 10
"""After an expensive check, the next one waits for this many times its duration."""
_LONGEST_REST_S = 2.0
"""The upper bound of that wait."""
_FAR = 1 << 40
MOST_IDLE = 64
"""Up to this many processes may count as idle by their processor time, which is counted in ticks.
"""
_IDLE_STALE_S = 10.0
"""How long a count stays valid for processes that seem idle."""


class Activity:
    """What a set of processes had done and used at one moment."""

    __slots__ = ("pids", "resident_pages", "tasks", "ticks")

    def __init__(self, processes: Collection[process_tree.TreeProcess]) -> None:
        self.pids = frozenset(process.pid for process in processes)
        self.tasks = sum(process.threads for process in processes)
        self.ticks = sum(process.ticks for process in processes)
        self.resident_pages = sum(process.resident_pages for process in processes)

    def is_idle_since(self, other: Activity | None) -> bool:
        """Whether nothing ran in between. Of many processes that is never known: what each of
        them does within a tick adds up.
        """
        return (
            other is not None
            and len(self.pids) <= MOST_IDLE
            and self.pids == other.pids
            and self.ticks == other.ticks
        )


class Watchdog:
    """Watches the memory and the number of processes of a capsule.

    `limits` are those that the kernel does not enforce. The last measurement is in `memory_bytes`
    (resident, or the capsule's own share where that was measured) and `activity`.
    """

    __slots__ = (
        "_count_at", "_counted", "_held_bytes", "_is_uncountable", "_memory_limit", "_pids_limit",
        "_rest_until", "_stale_at", "activity", "memory_bytes",
    )  # fmt: skip

    def __init__(self, limits: Limits) -> None:
        self._memory_limit = limits.memory_bytes
        self._pids_limit = limits.pids
        self._rest_until = 0.0
        self._count_at = self._stale_at = 0.0
        self._counted: Activity | None = None
        self._held_bytes = 0
        self._is_uncountable = False
        self.memory_bytes = 0
        self.activity = Activity(())

    @property
    def tasks(self) -> int:
        return self.activity.tasks

    def check(self, pids: Collection[int], proc: str = process_tree.PROC) -> str | None:
        """Which limit these processes exceed together: `memory`, `pids` (with threads) or none.

        `proc` is the procfs that knows them by these numbers.
        """
        found = (process_tree.find_process(pid, proc) for pid in pids)
        processes = [process for process in found if process is not None and not process.is_gone]
        self.activity = Activity(processes)
        if self._pids_limit is not None and self.tasks > self._pids_limit:
            return "pids"
        if self._memory_limit is not None and self._is_over(processes, self._memory_limit, proc):
            return "memory"
        return None

    def marks(self) -> tuple[int, int]:
        """Resident pages and tasks a quarter of the way from the last check to the limits; very
        large without a limit.
        """
        pages, tasks = self.activity.resident_pages, self.activity.tasks
        if self._memory_limit is None:
            pages += _FAR
        else:
            pages += max(0, self._memory_limit - self.memory_bytes) // _PAGE // 4
        tasks += _FAR if self._pids_limit is None else max(0, self._pids_limit - tasks) // 4
        return pages, tasks

    def _is_over(self, processes: list[process_tree.TreeProcess], limit: int, proc: str) -> bool:
        pids = [process.pid for process in processes]
        self._count_held(pids, proc)
        if self._is_uncountable:
            return True
        resident = dict(_find_resident(process, proc) for process in processes)
        self.memory_bytes = sum(resident.values()) + self._held_bytes
        began = time.monotonic()
        if self.memory_bytes <= limit or began < self._rest_until:
            return False
        # What several processes share was counted once for each of them.
        own, shared = 0, 0
        for pid, size in resident.items():
            total, shared_bytes = _share_bytes(f"{proc}/{pid}", size)
            own += total - shared_bytes
            shared += shared_bytes
        # What is held may be mapped as well: the larger of the two is at least there.
        self.memory_bytes = own + max(shared, self._held_bytes)
        if self.memory_bytes > limit:
            return True
        self._rest_until = _end_of_rest(began)
        return False

    def _count_held(self, pids: Collection[int], proc: str) -> None:
        """Count memory that processes hold by descriptors, mapped or not. Those that have done
        nothing since the last count hold what they held.
        """
        began = time.monotonic()
        is_idle = self.activity.is_idle_since(self._counted)
        if began < (self._stale_at if is_idle else self._count_at):
            return
        census = DescriptorCount(proc)
        census.take(pids)
        self._held_bytes = census.memory_bytes
        self._is_uncountable = census.is_exceeded
        self._counted = self.activity
        self._count_at = _end_of_rest(began)
        self._stale_at = began + _IDLE_STALE_S


def _end_of_rest(began: float) -> float:
    now = time.monotonic()
    return now + min(_REST * (now - began), _LONGEST_REST_S)


def _find_resident(process: process_tree.TreeProcess, proc: str) -> tuple[int, int]:
    """Under which number `/proc` shows what the process uses, and how much that is."""
    if process.resident_pages:
        return process.pid, process.resident_pages * _PAGE
    thread = process_tree.living_thread(process.pid, proc)
    return thread, _resident_bytes(thread, proc)


def _resident_bytes(pid: int, proc: str = process_tree.PROC) -> int:
    fields = _read(f"{proc}/{pid}/statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0


def _share_bytes(process: str, resident_bytes: int) -> tuple[int, int]:
    """Its own memory and its part of what is shared, swapped out or not; else what is resident.

    `process` is its directory in `/proc`. The second number is how much of that are files in
    memory.
    """
    sizes = {}
    for line in _read(f"{process}/smaps_rollup").splitlines():
        name, _, rest = line.partition(b":")
        if name in (b"Pss", b"SwapPss", b"Pss_Shmem"):
            sizes[name] = int(rest.split()[0]) * 1024
    shared = sizes.pop(b"Pss_Shmem", 0)
    return (sum(sizes.values()), shared) if b"Pss" in sizes else (resident_bytes, 0)


def _read(path: str) -> bytes:
    """Nothing if the process has ended or may not be examined."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""
