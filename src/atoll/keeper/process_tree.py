"""The tree of processes under one root, read from /proc.

A reading of /proc is never proof that nothing is left: a process may fork meanwhile. Proof is that
a subreaper has no child any more (`reap` reports that), because every process below it descends
from a child of it.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sized

PROC = "/proc"
_STAT_BYTES = 4096
REAP_LIMIT = 2000
"""How many events `reap` takes at a time."""


class TreeProcess:
    """One process as seen; `start` is in clock ticks since boot: process ids are used again."""

    __slots__ = (
        "group", "own_ticks", "pid", "ppid", "resident_pages", "session", "start", "state",
        "threads", "ticks",
    )  # fmt: skip

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        """`fields` are those of /proc/PID/stat behind the name."""
        self.pid = pid
        self.state = fields[0].decode("ascii")
        self.ppid = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.own_ticks = int(fields[11]) + int(fields[12])
        """Processor time of its threads."""
        self.ticks = sum(map(int, fields[11:15]))
        """Processor time of its threads and of the children that it has waited for."""
        self.threads = int(fields[17])
        self.start = int(fields[19])
        self.resident_pages = int(fields[21])

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.start

    @property
    def is_dead(self) -> bool:
        """A zombie or dead. It may still have live threads, so it still gets signals."""
        return self.state in "ZX"

    @property
    def is_gone(self) -> bool:
        """Dead, with all of its threads."""
        return self.is_dead and self.threads <= 1


class Stop:
    """One thread that this process traces and that has stopped; `code` is as ptrace gives it."""

    __slots__ = ("code", "tid")

    def __init__(self, tid: int, code: int) -> None:
        self.tid = tid
        self.code = code


class Exit:
    """One reaped child, with what it and the children that it had waited for used."""

    __slots__ = ("cpu_s", "max_rss_bytes", "pid", "wait_status")

    def __init__(self, pid: int, wait_status: int, cpu_s: float, max_rss_bytes: int) -> None:
        self.pid = pid
        self.wait_status = wait_status
        self.cpu_s = cpu_s
        self.max_rss_bytes = max_rss_bytes


def find_process(pid: int, proc: str = PROC) -> TreeProcess | None:
    """The process with this number in the procfs that is mounted at `proc`."""
    try:
        fd = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return parse_stat(pid, read_stat(fd))
    except OSError:
        return None
    finally:
        os.close(fd)


def read_stat(fd: int) -> bytes:
    """The current `stat` of a process, by its descriptor. OSError if it has ended."""
    return os.pread(fd, _STAT_BYTES, 0)


def parse_stat(pid: int, line: bytes) -> TreeProcess | None:
    # The name in parentheses may itself hold spaces and parentheses.
    fields = line.rpartition(b")")[2].split()
    return TreeProcess(pid, fields) if len(fields) > 21 else None


def living_thread(pid: int, proc: str = PROC) -> int:
    """The process itself; or, when its first thread has ended, a live one: `/proc` shows such a
    process only through that thread.
    """
    process = find_process(pid, proc)
    if process is None or not process.is_dead or process.is_gone:
        return pid
    try:
        threads = [int(name) for name in os.listdir(f"{proc}/{pid}/task")]
    except OSError:
        return pid
    for tid in threads:
        thread = find_process(tid, proc)
        if thread is not None and not thread.is_dead:
            return tid
    return pid


def processes_under(root: int, spared: Collection[int] = ()) -> list[TreeProcess]:
    """Every process below `root`, parents before children, dead ones included.

    Those in `spared` are left out, with what is below them.
    """
    return survey(root, spared)[0]


def survey(root: int, spared: Collection[int] = ()) -> tuple[list[TreeProcess], bool]:
    """As `processes_under`, and whether the listing is consistent.

    It is not if a process vanished while it was read, or names a parent that was not seen: a
    process below `root` may then have been missed.
    """
    children: dict[int, list[TreeProcess]] = {}
    pids = {0}
    is_consistent = True
    for name in os.listdir("/proc"):
        if name.isdecimal():
            process = find_process(int(name))
            if process is None:
                is_consistent = False
            else:
                children.setdefault(process.ppid, []).append(process)
                pids.add(process.pid)
    strangers = [process for ppid in children.keys() - pids for process in children[ppid]]
    is_consistent = is_consistent and all(map(_has_hidden_parent, strangers))
    found: list[TreeProcess] = []
    pending = [root]
    while pending:
        below = [p for p in children.pop(pending.pop(), []) if p.pid not in spared]
        found.extend(below)
        pending.extend(process.pid for process in below)
    return found, is_consistent


def _has_hidden_parent(process: TreeProcess) -> bool:
    """Whether the parent is not shown to this user (`hidepid`), rather than just missed."""
    now = find_process(process.pid)
    is_same = now is not None and now.identity == process.identity and now.ppid == process.ppid
    return is_same and find_process(process.ppid) is None


def descendants(pid: int, spared: Collection[int] = ()) -> list[int]:
    """The ids of every process below `pid` with a live thread."""
    return [process.pid for process in processes_under(pid, spared) if not process.is_gone]


def send_signal(process: TreeProcess, *numbers: int) -> bool:
    """Signal exactly the process that was seen; False if it is gone or not ours to signal."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:  # no pidfd here (old kernel, filter, no descriptor left)
        fd = -1
    try:
        now = find_process(process.pid)
        if now is None or now.start != process.start:
            return False
        for number in numbers:
            if fd >= 0:
                signal.pidfd_send_signal(fd, number)
            else:
                os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True


def kill_groups(processes: list[TreeProcess], spared: Collection[int] = ()) -> None:
    """Kill the process groups of these processes, each as a whole: no member can fork away from
    that. Not those of this process's own session, or of the sessions of those in `spared`.

    All members of a session descend from the process that made it, and so from the same root.
    """
    known = (find_process(pid) for pid in (os.getpid(), *spared))
    sessions = {process.session for process in known if process is not None}
    found = {p.group: p.session for p in processes if p.group > 1 and p.session not in sessions}
    for group, session in found.items():
        leader = find_process(group)
        if leader is not None and leader.session != session:
            continue  # the group has ended, and its number was reused
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def reap(stops: list[Stop] | None = None) -> tuple[list[Exit], bool]:
    """Reap dead children; the flag is true while this process still has children.

    Threads that this process traces and that have stopped are added to `stops`. Returns after
    `REAP_LIMIT` events even if more are pending (`is_cut_short`): processes that fork and exit
    without end would otherwise keep the caller here for ever.
    """
    exits: list[Exit] = []
    for _ in range(REAP_LIMIT):
        try:
            pid, wait_status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return exits, False
        if pid == 0:
            return exits, True
        if os.WIFSTOPPED(wait_status):
            if stops is not None:
                stops.append(Stop(pid, wait_status >> 8))
            continue
        cpu_s = usage.ru_utime + usage.ru_stime
        exits.append(Exit(pid, wait_status, cpu_s, usage.ru_maxrss * 1024))
    return exits, True


def is_cut_short(exits: Sized, stops: Sized = ()) -> bool:
    """Whether `reap` returned these because of its limit, so that more may be pending."""
    return len(exits) + len(stops) >= REAP_LIMIT
