"""The cost of idle runs: processor time of the processes that supervise them."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

from atoll.engine.bench.place import open_for, throwaway
from atoll.engine.bench.projects import SHAPES, generate
from atoll.engine.bench.table import BenchReport, Row, at_most
from atoll.engine.bench.workspace import (
    BenchOptions,
    OnProgress,
    describe,
    machine_of,
    require_parent,
)
from atoll.engine.projects import CapsuleSpec, open_project
from atoll.engine.run.runs import RunSpec
from atoll.host import procfs
from atoll.host.process import pause

_RUNS = 100
_RUNS_PER_CAPSULE = 10
_SETTLED_S = 3.0
_SAMPLE_S = 1.0
_MOST_S = 0.02
"""Per second, for a hundred runs."""


def measure(order: BenchOptions, on_progress: OnProgress) -> BenchReport:
    """A hundred runs of `sleep` at level `sandbox`, ten in each capsule; fewer with `--scale`."""
    parent = require_parent(order)
    load_before = os.getloadavg()
    shape = SHAPES["S"].scaled(min(order.scale, 0.1))
    count = max(2, round(_RUNS * order.scale))
    with ExitStack() as stack:
        place = stack.enter_context(throwaway(parent))
        root = generate(shape, place / "project").root
        project = open_project(root, home=place / "home", warn=on_progress)
        stack.enter_context(open_for(project))
        needed = -(-count // _RUNS_PER_CAPSULE)
        on_progress(f"starting {count} runs in {needed} capsules")
        plans = [
            project.plan(f"idle-{number}", CapsuleSpec(level="sandbox")) for number in range(needed)
        ]
        capsules = project.make(plans)
        for number in range(count):
            asked = RunSpec(argv=("sleep", "86400"), background=True, stdin=False)
            capsules[number // _RUNS_PER_CAPSULE].start(asked)
        pause(_SETTLED_S)
        on_progress("measuring the processor time of all processes of Atoll's")
        samples = tuple(_used_per_s(place) for _ in range(max(2, order.repeat // 4)))
        for capsule in capsules:
            capsule.remove(force=True)
        return BenchReport(
            machine=machine_of(parent, plans[0].workspace.driver, load_before),
            projects=(describe(shape),),
            rows=(
                Row(
                    "",
                    f"processor time per second of {count} idle runs",
                    samples,
                    aim=at_most(_MOST_S) if count >= _RUNS else None,
                ),
            ),
            skipped=(),
        )


def _used_per_s(place: Path) -> float:
    before, began = _used(place), time.monotonic()
    pause(_SAMPLE_S)
    after, took_s = _used(place), time.monotonic() - began
    return sum(after[pid] - before[pid] for pid in after.keys() & before.keys()) / took_s


def _used(place: Path) -> dict[int, float]:
    """Seconds, by process: of everything that was started for `place`, but for the runs."""
    table = procfs.processes().values()
    keepers = [process for process in table if f"{place}/" in process.command]
    return {process.pid: _run_time_s(process.pid, process.cpu_s) for process in keepers}


def _run_time_s(pid: int, default_s: float) -> float:
    """In nanoseconds where the kernel counts them: the clock ticks of others are too coarse."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return default_s
