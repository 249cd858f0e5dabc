"""Reads /proc: processes, and which of them belong to a run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from atoll.host.process import wait_until
from atoll.keeper import process_tree
from atoll.model.state import Process

MARKER = "ATOLL_RUN"
"""The variable that marks every process of a run, so that it is found without its keeper."""

_TICKS = os.sysconf("SC_CLK_TCK")
_COMMAND_BYTES = 4096
"""The limit for a command line: it can have megabytes, and there are thousands of processes."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


_MOST_FILES = 4096


class Opener(NamedTuple):
    """A process that has a file open."""

    pid: int
    name: str


def find_openers(path: Path) -> list[Opener]:
    """The other visible processes that have this file open; empty if it does not exist."""
    try:
        wanted = path.stat()
    except OSError:
        return []
    pids = (pid for pid in _pids() if pid != os.getpid())
    return [Opener(pid, _name(pid)) for pid in pids if _has_open(pid, wanted)]


def _name(pid: int) -> str:
    """The name in `ps`; a process can choose it freely."""
    name = os.fsdecode(_read(pid, "comm", 64) or b"?").strip()
    return "".join(letter if letter.isprintable() and letter != "`" else "?" for letter in name)


def _has_open(pid: int, wanted: os.stat_result) -> bool:
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in islice(entries, _MOST_FILES):
            with suppress(OSError):
                if os.path.samestat(os.stat(entry.path), wanted):
                    return True
    return False


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def _read(pid: int, name: str, limit_bytes: int = -1) -> bytes | None:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as stream:
            return stream.read(limit_bytes)
    except OSError:
        # Exited, or another user's process: not reported.
        return None


def processes() -> dict[int, Process]:
    """All visible processes, by pid."""
    boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    found: dict[int, Process] = {}
    for pid in _pids():
        seen = process_tree.find_process(pid)
        if seen is None or seen.state == "Z":
            continue
        line = _read(pid, "cmdline", _COMMAND_BYTES) or _read(pid, "comm") or b""
        found[pid] = Process(
            pid=pid,
            ppid=seen.ppid,
            command=os.fsdecode(line.rstrip(b"\0\n").replace(b"\0", b" ")),
            cpu_s=seen.own_ticks / _TICKS,
            rss_bytes=seen.resident_pages * _PAGE,
            age_s=max(0.0, boot - seen.start / _TICKS),
        )
    return found


def marked(token: str) -> list[int]:
    """The pids that carry a run's marker in their environment."""
    needle = f"{MARKER}={token}".encode()
    mine = os.getpid()
    return [
        pid
        for pid in _pids()
        if pid != mine and needle in (_read(pid, "environ") or b"").split(b"\0")
    ]


def family(roots: list[int], table: dict[int, Process]) -> list[Process]:
    """The processes `roots` and their descendants, parents first."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process.pid)
    ordered: list[Process] = []
    queue = [pid for pid in roots if pid in table]
    seen = set(queue)
    while queue:
        pid = queue.pop(0)
        ordered.append(table[pid])
        fresh = [child for child in sorted(children.get(pid, [])) if child not in seen]
        seen.update(fresh)
        queue.extend(fresh)
    return ordered


def end_marked(token: str, *, timeout_s: float = 10.0) -> bool:
    """Kills the marked processes and their descendants, until none is left."""

    def swept() -> bool:
        pids = [process.pid for process in family(marked(token), processes())]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                _signal(pid, number)
        return not pids

    return wait_until(swept, timeout_s=timeout_s)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal such as SIGSTOP."""
    process = process_tree.find_process(pid)
    return process is not None and process.state == "T"
