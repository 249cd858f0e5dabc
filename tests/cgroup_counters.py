"""What the kernel counts for a cgroup, of both versions; None is what this host does not count."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Counters(NamedTuple):
    memory_bytes: int | None
    memory_peak_bytes: int | None
    cpu_s: float | None
    pids: int | None
    refused_forks: int | None


def counters(group):
    memory, pids = group._by_use.get("memory"), group._by_use.get("pids")
    return Counters(
        _number(memory, "memory.current", "memory.usage_in_bytes"),
        _number(memory, "memory.peak", "memory.max_usage_in_bytes"),
        _cpu_s(group),
        _number(pids, "pids.current"),
        _field(pids, "pids.events", "max"),
    )


def _cpu_s(group):
    # Version 2 counts it in every group, version 1 only where `cpuacct` is mounted with `cpu`.
    for use in ("cpu", "unified"):
        used_us = _field(group._by_use.get(use), "cpu.stat", "usage_usec")
        if used_us is not None:
            return used_us / 1e6
    used_ns = _number(group._by_use.get("cpu"), "cpuacct.usage")
    return None if used_ns is None else used_ns / 1e9


def _read(directory, name):
    path = Path(directory or "/nonexistent", name)
    return path.read_text() if path.exists() else ""


def _number(directory, *names):
    texts = (_read(directory, name).strip() for name in names)
    return next((int(text) for text in texts if text.isdecimal()), None)


def _field(directory, name, key):
    found = dict(line.split() for line in _read(directory, name).splitlines())
    return int(found[key]) if key in found else None
