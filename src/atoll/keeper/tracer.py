"""Freezes a process tree with ptrace.

SIGSTOP is not enough: a timer that sends SIGCONT undoes it. A thread in a ptrace stop does nothing
until its tracer resumes it, whatever signals it gets, and what it forks is stopped from its first
instruction on. The tracer must be an ancestor of the tree, so that restricted ptrace (Yama) allows
it, and must have one thread.
"""

from __future__ import annotations

import errno
import os
import select
import time

from atoll.keeper import calls, process_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_DEAD = ("Z", "X")
_TRACED = "t"
_UNINTERRUPTIBLE = "D"
_ALL_CHILDREN = 0x40000000  # __WALL: threads, too
_CLEAN_ROUNDS = 3
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02
_RELEASE_ROUNDS = 5
_CATCH_ROUNDS = 200
_CATCH_BATCH = 256
_STATUS_BYTES = 8192
_FORKING = {
    "x86_64": frozenset({56, 57, 58, 435}),  # clone, fork, vfork, clone3
    "aarch64": frozenset({220, 435}),
}


class Tracer:
    """Holds every thread of every process below `root`, which is the calling process.

    Not those in `spared`, and what is below them.
    """

    __slots__ = ("_forking", "_is_holding", "_rival", "_root", "_signals", "_spared")

    def __init__(self, root: int, spared: Collection[int] = ()) -> None:
        self._root = root
        self._spared = spared
        self._is_holding = False
        self._rival: str | None = None
        """A process with another tracer, such as a debugger, that may resume it."""
        self._signals: dict[int, int] = {}
        """Signals that were pending for threads when these stopped."""
        self._forking = _FORKING.get(os.uname().machine, frozenset())

    def hold(
        self, timeout_s: float, reap: Callable[[], Collection[int]] | None = None
    ) -> str | None:
        """Stop everything; returns None once that is verified, else the reason why it is not.

        What could be stopped stays so, until `release`. To be called again, it only verifies what
        has been stopped before. `reap` reaps dead children, which would otherwise accumulate and
        slow down every listing, and returns their numbers.
        """
        self._is_holding = True
        deadline = time.monotonic() + timeout_s
        pause_s, clean = _FIRST_PAUSE_S, 0
        before: set[tuple[int, int, int]] = set()
        while True:
            self._catch_children(deadline, reap)
            forks = _count_forks()
            seen: set[tuple[int, int, int]] = set()
            reason = self._find_loose(seen)
            if reason is None and seen != before:
                # Also if the new ones are dead already: each may have left a child behind.
                reason = "processes come and go faster than they can be listed"
            before = seen
            clean = 0 if reason is not None else clean + 1
            # No process was forked anywhere meanwhile, so that the listing is complete. On a busy
            # machine, where some always are, several equal listings have to do.
            if clean and (_count_forks() == forks or clean >= _CLEAN_ROUNDS):
                return None
            if reason is not None:
                if self._rival is not None or time.monotonic() >= deadline:
                    return self._rival or reason
                select.select((), (), (), pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def release(self) -> None:
        """Resume everything. Threads that have not stopped yet are resumed as soon as they do."""
        self._is_holding = False
        for _ in range(_RELEASE_ROUNDS):
            held = [tid for tid, state in self._traced() if state == _TRACED]
            if not held:
                break
            for tid in held:
                self._take_stop(tid)
                self._detach(tid)
        self._signals.clear()

    def note_stop(self, stop: process_tree.Stop) -> None:
        """A thread has stopped, as `tree.reap` has seen."""
        self._note(stop.tid, stop.code)
        if not self._is_holding:
            self._detach(stop.tid)

    def _catch_children(self, deadline: float, reap: Callable[[], Collection[int]] | None) -> None:
        """Stop the children, as long as new ones come. A process that forks and exits, again and
        again, is always one of them, and gone before all processes have been listed.
        """
        caught: set[int] = set()
        for _ in range(_CATCH_ROUNDS):
            if reap is not None:
                # Before the listing: a number in it stays that of a child until the next reaping.
                caught.difference_update(reap())
            fresh = [pid for pid in children(self._root) if pid not in caught]
            # The newest first, and not too many at a time: the others are probably dead already.
            batch = fresh[-_CATCH_BATCH:]
            for pid in reversed(batch):
                if pid not in self._spared:
                    _seize(pid, pid)
            if not fresh or time.monotonic() >= deadline:
                return
            caught.update(batch)

    def _find_loose(self, seen: set[tuple[int, int, int]]) -> str | None:
        """Stop all that runs; why the tree is not still, or None if it has been since before.

        Adds all threads to `seen`, dead ones, too.
        """
        self._rival = None
        processes, is_consistent = process_tree.survey(self._root, self._spared)
        reason = None if is_consistent else "processes come and go faster than they can be listed"
        for process in processes:
            for tid in _threads(process.pid):
                seen.add((*process.identity, tid))
                reason = self._find_motion(process.pid, tid) or reason
        return reason

    def _find_motion(self, pid: int, tid: int) -> str | None:
        found = _status(pid, tid)
        if found is None or found[0] in _DEAD:
            return "a thread has just ended" if found is None else None
        state, tracer = found
        if tracer == self._root:
            if state == _TRACED:
                self._take_stop(tid)
                return None
            return None if self._is_in_fork(pid, tid, state) else f"process {pid} does not stop"
        if tracer:
            self._rival = f"process {pid} is traced by another"
            return self._rival
        return _seize(pid, tid)

    def _is_in_fork(self, pid: int, tid: int, state: str) -> bool:
        """Whether a thread waits in `vfork` for a child, which cannot continue either.

        It was signalled to stop, so that the kernel lets it fork nothing more and stops it once
        the child has continued.
        """
        if state != _UNINTERRUPTIBLE:
            return False
        number = _read(f"/proc/{pid}/task/{tid}/syscall").split(b" ", 1)[0]
        return number.isdigit() and int(number) in self._forking

    def _traced(self) -> list[tuple[int, str]]:
        """All threads that are traced by us, with their states."""
        found = []
        for process in process_tree.processes_under(self._root, self._spared):
            for tid in _threads(process.pid):
                status = _status(process.pid, tid)
                if status is not None and status[1] == self._root:
                    found.append((tid, status[0]))
        return found

    def _take_stop(self, tid: int) -> None:
        """Find why a thread has stopped, without reaping one that has ended."""
        how = os.WSTOPPED | os.WNOHANG | _ALL_CHILDREN
        try:
            found = os.waitid(os.P_PID, tid, how)
        except ChildProcessError:
            return
        if found is not None:
            self._note(tid, found.si_status)

    def _note(self, tid: int, code: int) -> None:
        if code >> 8 == 0:  # a signal, no event of ptrace
            self._signals[tid] = code
        else:
            self._signals.pop(tid, None)

    def _detach(self, tid: int) -> None:
        try:
            calls.detach_thread(tid, self._signals.pop(tid, 0))
        except OSError:  # it has ended, or was resumed before
            return


def children(pid: int, limit_bytes: int = 1 << 20) -> list[int]:
    """The children of a process's main thread, the newest last; at most `limit_bytes` are read.

    Each number ends with a space: a truncated one is ignored.
    """
    listed = _read(f"/proc/{pid}/task/{pid}/children", limit_bytes)
    return [int(word) for word in listed.rpartition(b" ")[0].split()]


def _seize(pid: int, tid: int) -> str:
    """Signal a thread to stop; returns why its stop is not confirmed yet."""
    try:
        calls.seize_thread(tid)
    except OSError as error:
        if error.errno == errno.ESRCH:
            return "a process has just ended"
        return f"process {pid} cannot be traced: {os.strerror(error.errno or 0)}"
    return f"process {pid} has only just been signalled to stop"


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _status(pid: int, tid: int) -> tuple[str, int] | None:
    """A thread's state and its tracer, 0 if it has none."""
    state, tracer = "", -1
    for line in _read(f"/proc/{pid}/task/{tid}/status").split(b"\n"):
        if line.startswith(b"State:"):
            state = line.split()[1].decode("ascii")
        elif line.startswith(b"TracerPid:"):
            tracer = int(line.split()[1])
    return (state, tracer) if state and tracer >= 0 else None


def _count_forks() -> int:
    """How many processes and threads this machine has started since its boot."""
    for line in _read("/proc/stat", 1 << 20).split(b"\n"):
        if line.startswith(b"processes "):
            return int(line.split()[1])
    return 0


def _read(path: str, size: int = _STATUS_BYTES) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    found = b""
    try:
        while len(found) < size and (piece := os.read(fd, size - len(found))):
            found += piece
    except OSError:  # it has ended
        return b""
    finally:
        os.close(fd)
    return found
