"""The capacity of this machine, and limits that exceed it."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from pathlib import Path

from atoll.keeper import process_limits
from atoll.model import units

_PID_MAX = "/proc/sys/kernel/pid_max"


def capacity(home: Path) -> dict[str, float]:
    """How much there is of what can be limited, by the names that settings use."""
    filesystem = os.statvfs(home)
    return {
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "cpus": float(os.cpu_count() or 1),
        "pids": _pid_max(),
        "files": files_in_force(units.FILES_LIMIT),
        "disk": filesystem.f_blocks * filesystem.f_frsize,
    }


def files_in_force(limit: float, pid: int = 0) -> int:
    """The limit on open files that a process started by `pid` (0: this process) really gets.

    A hard limit is never raised, so the one of the parent counts where it is lower.
    """
    try:
        hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
    except OSError:  # it has just ended
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return process_limits.files_limit(int(limit), hard)


def describe_excess(limits: Mapping[str, float | None], available: Mapping[str, float]) -> str:
    """Names the limits that exceed what is available; empty if none does."""
    found = [
        f"`{name}={_render(name, value)}` (of {_render(name, available[name])})"
        for name, value in limits.items()
        if value is not None and value > available.get(name, float("inf"))
    ]
    if not found:
        return ""
    return f"limits above what this machine has, so the smaller number applies: {', '.join(found)}"


def _render(name: str, value: float) -> str:
    return units.render_size(int(value)) if name in ("memory", "disk") else f"{value:g}"


def _pid_max() -> int:
    try:
        with open(_PID_MAX, encoding="ascii") as file:
            return int(file.read(32))
    except (OSError, ValueError):
        return units.PIDS_LIMIT
