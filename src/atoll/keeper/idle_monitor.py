"""The idle monitor: one process per home that watches all idle runs, so that their minders sleep.

A minder checks its run several times a second. For many runs that do nothing, waking up costs more
than the check. The minder of an idle run hands the run over: it sends the procfs of the run's pid
namespace with its last measurements, and sleeps. The monitor compares all of these at the same
short interval and notifies the minder of any change. It decides nothing and ends nothing.

Disk space can be used up in one call, without processor time. So a minder with a disk limit also
sends a directory and how much must stay free on its filesystem, which is queried once for all runs.

A limit never depends on the monitor: if there is none, or it dies or refuses, the minder goes on
checking by itself. It notices a death by the end of the connection.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import time

from atoll.keeper import calls, process_tree, requests, wire
from atoll.keeper.child_process import ServedDirectory, leave_everything, run_process
from atoll.keeper.disk_budget import Free, find_free
from atoll.keeper.handles import Opened
from atoll.keeper.loop import READ, Loop
from atoll.keeper.peer_check import Origin
from atoll.keeper.run_processes import numbers

SOCKET = "lookout"
CHECK_S = 0.25
"""The interval between checks, the same as that of a keeper."""
_LOCK = "lock"
_IDLE_S = 0.5
"""How long it stays without a client. Holders keep a connection until they exit."""
_HOME_S = 10.0
_SLACK_TICKS = 4
"""Processor time that a run may use before its keeper has to check: idle servers use a little."""
_LOADAVG_BYTES = 128


def fork_idle_monitor(directory: str) -> None:
    """Start the idle monitor of `directory` unless it is running. OSError if that fails."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with Opened(os.open(os.path.join(directory, _LOCK), flags, 0o600)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        # Before the fork: the next client finds a listening socket.
        listener = wire.listen(directory, SOCKET, socket.SOCK_SEQPACKET)
        with listener:
            if os.fork() == 0:
                run_process(directory, lambda: _watch(directory, listener, lock))


def connect(directory: str) -> socket.socket:
    """A connection to the idle monitor in `directory`, non-blocking. OSError if there is none."""
    return wire.connect(directory, SOCKET, socket.SOCK_SEQPACKET, timeout_s=0)


def _watch(directory: str, listener: socket.socket, lock: int) -> int:
    leave_everything({listener.fileno(), lock})
    calls.name_process("atoll-idle")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    IdleMonitor(directory, listener).serve()
    return 0


class IdleRun:
    """A run that is idle, by what its keeper saw last: its processes and how far each number may
    go. OSError if one of the processes has ended since.
    """

    __slots__ = (
        "_device", "_disk", "_least_free", "_lines", "_most_free", "_pids", "_proc", "_stats",
        "_tasks", "_ticks", "_top_pages",
    )  # fmt: skip

    def __init__(self, proc: int, raw: dict[str, object], disk: int | None = None) -> None:
        """`proc` and `disk` stay the caller's."""
        pids = raw.get("pids")
        if not isinstance(pids, list) or not all(type(pid) is int and pid > 0 for pid in pids):
            raise wire.WireError("`pids` is not a list of numbers")
        self._pids = frozenset(pids)
        self._ticks = wire.whole_number(raw, "ticks") + _SLACK_TICKS
        self._tasks = wire.whole_number(raw, "tasks")
        self._top_pages = wire.whole_number(raw, "resident_pages")
        self._least_free = _least_free(raw) if disk is not None else Free(0, 0)
        self._most_free: Free | None = None
        self._device = 0 if disk is None else os.fstat(disk).st_dev
        self._stats: dict[int, int] = {}
        self._lines: dict[int, bytes] = {}
        self._disk: int | None = None
        self._proc = os.dup(proc)
        try:
            self._disk = None if disk is None else os.dup(disk)
            for pid in pids:
                flags = os.O_RDONLY | os.O_CLOEXEC
                self._stats[pid] = os.open(f"{pid}/stat", flags, dir_fd=proc)
        except OSError:
            self.close()
            raise

    def has_changed(self, *, may_have_forked: bool) -> bool:
        """Whether the keeper has to check. A process that has ended is a change."""
        if may_have_forked and not self._pids.issuperset(numbers(self._proc, self._pids)):
            return True
        try:
            lines = {pid: process_tree.read_stat(stat) for pid, stat in self._stats.items()}
        except OSError:
            return True
        if lines == self._lines:
            # Of a process that sleeps, not one number changes.
            return False
        self._lines = lines
        return self._is_beyond([process_tree.parse_stat(pid, line) for pid, line in lines.items()])

    def _is_beyond(self, processes: list[process_tree.TreeProcess | None]) -> bool:
        ticks = tasks = pages = 0
        for process in processes:
            if process is None or process.is_gone:
                return True
            ticks += process.ticks
            tasks += process.threads
            pages += process.resident_pages
        return ticks > self._ticks or tasks > self._tasks or pages > self._top_pages

    def is_short_of_disk(self, known: dict[int, Free]) -> bool:
        """Whether less is free than the keeper has asked for, or as much has gone since the most
        that was free: what others free must not hide what the run takes. `known` has what was
        found in this turn, by device, and takes what is found here.
        """
        if self._disk is None:
            return False
        try:
            free = known.get(self._device) or find_free(self._disk)
        except OSError:
            return True
        known[self._device] = free
        most = free if self._most_free is None else self._most_free
        self._least_free = self._least_free.raised(most, free)
        self._most_free = most.most(free)
        return free.is_below(self._least_free)

    def close(self) -> None:
        os.close(self._proc)
        if self._disk is not None:
            os.close(self._disk)
        for stat in self._stats.values():
            os.close(stat)


def _least_free(raw: dict[str, object]) -> Free:
    return Free(wire.whole_number(raw, "free_bytes"), wire.whole_number(raw, "free_entries"))


class IdleMonitor:
    """Serves minders until it has been unused for a while, or its directory is gone."""

    def __init__(self, directory: str, listener: socket.socket) -> None:
        self._directory = directory
        self._listener = listener
        self._place = ServedDirectory(directory)
        # The mount and user namespaces of keepers are those of their capsules.
        self._origin = Origin(is_strict=False)
        self._loop = Loop()
        self._clients: dict[int, socket.socket] = {}
        self._watched: dict[int, IdleRun] = {}
        self._last_pid = b""
        now = time.monotonic()
        self._check_at = now
        self._home_at = now + _HOME_S
        self._used_at = now

    def serve(self) -> None:
        self._loop.catch_signals()
        self._loop.watch(self._listener.fileno(), READ, self._accept)
        is_over = False
        while not is_over:
            self._loop.turn(self._wait_s(time.monotonic()))
            now = time.monotonic()
            if self._watched and now >= self._check_at:
                self._check_at = now + CHECK_S
                self._check()
            if self._clients:
                self._used_at = now
            is_over = self._is_over(now)
        wire.remove(self._directory, SOCKET)

    def _wait_s(self, now: float) -> float:
        due_at = self._check_at if self._watched else self._home_at
        if not self._clients:
            due_at = min(due_at, self._used_at + _IDLE_S)
        return max(0.0, due_at - now)

    def _is_over(self, now: float) -> bool:
        if self._loop.stop_is_asked or now >= self._used_at + _IDLE_S:
            return True
        if now < self._home_at:
            return False
        self._home_at = now + _HOME_S
        return self._place.is_lost()

    def _check(self) -> None:
        may_have_forked = self._has_forked()
        free: dict[int, Free] = {}
        for client, watched in list(self._watched.items()):
            is_short = watched.is_short_of_disk(free)
            if is_short or watched.has_changed(may_have_forked=may_have_forked):
                self._release(client)
                said: dict[str, object] = {"changed": True}
                self._send(client, said | ({"disk": True} if is_short else {}))

    def _has_forked(self) -> bool:
        """Whether any process or thread was created on this machine since the last check: the
        kernel reports the number of the last one.
        """
        try:
            with open("/proc/loadavg", "rb", buffering=0) as file:
                last = file.read(_LOADAVG_BYTES).split()[-1]
        except (OSError, IndexError):
            return True
        before, self._last_pid = self._last_pid, last
        return last != before

    def _accept(self, _events: int) -> None:
        client = self._origin.accept(self._listener)
        if client is None:
            return
        self._clients[client.fileno()] = client
        self._loop.watch(client.fileno(), READ, lambda _: self._answer(client.fileno()))

    def _answer(self, client: int) -> None:
        fds: list[int] = []
        try:
            request, fds = requests.receive(self._clients[client])
            self._release(client)
            marks = request.get("watch")
            if isinstance(marks, dict) and 1 <= len(fds) <= 2:
                self._take(client, IdleRun(fds[0], marks, *fds[1:]))
            elif "ping" in request:
                self._send(client, {"pid": os.getpid()})
        except BlockingIOError:
            return
        except (EOFError, OSError, wire.WireError):
            self._drop(client)
        finally:
            for fd in fds:
                os.close(fd)

    def _take(self, client: int, watched: IdleRun) -> None:
        # It may have changed on the way here.
        if watched.has_changed(may_have_forked=True) or watched.is_short_of_disk({}):
            watched.close()
            self._send(client, {"changed": True})
            return
        if not self._watched:
            self._check_at = time.monotonic() + CHECK_S
        self._watched[client] = watched
        self._send(client, {"watching": True})

    def _send(self, client: int, value: dict[str, object]) -> None:
        """A minder that cannot be notified has to check by itself: it is disconnected."""
        try:
            requests.send(self._clients[client], value)
        except OSError:
            self._drop(client)

    def _release(self, client: int) -> None:
        watched = self._watched.pop(client, None)
        if watched is not None:
            watched.close()

    def _drop(self, client: int) -> None:
        self._release(client)
        self._loop.forget(client)
        self._clients.pop(client).close()
