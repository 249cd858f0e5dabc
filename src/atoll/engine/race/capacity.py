"""How many candidates the machine carries at once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from atoll.model.race import Candidate, CandidateState

_RESERVE_BYTES = 512 << 20
"""Of available memory; with less no further candidate is started."""
_AGENTS_PER_CPU = 2.0
"""An agent mostly waits for its model."""
_AT_WORK = (CandidateState.STARTING, CandidateState.RUNNING)
_MEMORY = Path("/proc/meminfo")


class MachineCapacity(NamedTuple):
    cpus: float
    memory_bytes: int
    available_bytes: int
    """What processes can have without swapping."""


class CandidateNeed(NamedTuple):
    """What one candidate uses, as far as that is declared."""

    is_agent: bool = False
    cpus: float | None = None
    memory_bytes: float | None = None


def find_machine() -> MachineCapacity:
    cpus = float(len(os.sched_getaffinity(0)))
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return MachineCapacity(cpus, total, _parse_available(_MEMORY.read_text(), total))


def _parse_available(text: str, total: int) -> int:
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if name == "MemAvailable" and words and words[0].isdigit():
            return int(words[0]) << 10
    return total


def find_most(machine: MachineCapacity, need: CandidateNeed, *, others: int = 0) -> int:
    """How many candidates it carries at once, besides `others` of other races. Pure."""
    per_cpu = _AGENTS_PER_CPU if need.is_agent else 1.0
    carried = machine.cpus * (1.0 / need.cpus if need.cpus else per_cpu)
    if need.memory_bytes:
        carried = min(carried, machine.memory_bytes / need.memory_bytes)
    return max(1, int(carried) - others)


def may_start(machine: MachineCapacity, at_work: int, most: int) -> bool:
    """Whether one more may begin; the first one always may. Pure."""
    return at_work == 0 or (at_work < most and machine.available_bytes >= _RESERVE_BYTES)


def count_at_work(candidates: Iterable[Candidate]) -> int:
    return sum(candidate.state in _AT_WORK for candidate in candidates)
