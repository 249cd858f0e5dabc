"""What a race costs: capsules against worktrees with copies, checks against checks in place.

Both sides do the same on the same project in the same run; only ratios are judged.
"""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from atoll.engine.bench import peers
from atoll.engine.bench.peers import measured, timed
from atoll.engine.bench.place import await_rest, open_for, settle_disk, throwaway
from atoll.engine.bench.projects import Generated, Shape, generate
from atoll.engine.bench.table import BenchReport, Row, at_most, at_most_times, times_faster
from atoll.engine.bench.workspace import (
    BenchOptions,
    OnProgress,
    describe,
    machine_of,
    require_parent,
)
from atoll.engine.check.checks import Checker, CheckTarget
from atoll.engine.project import levels
from atoll.engine.projects import CapsuleSpec, Project, open_project
from atoll.host import git, programs
from atoll.host.process import run
from atoll.model.check import CheckSpec
from atoll.model.errors import DriverError
from atoll.model.race import RaceRequest

COUNT = 10
_FEW = 3
_WORK = "echo $ATTEMPT >attempt.txt"
_TEST = "test -s attempt.txt"
_LONG_S = 5.0
"""About as long as the check takes whose overhead is measured."""
_MOST = 0.05
"""How much of that a fresh capsule may add."""
_CHECK = (
    "import hashlib, os, sys\n"
    "for place, _, names in os.walk('src'):\n"
    "    for name in names:\n"
    "        with open(os.path.join(place, name), 'rb') as file: hashlib.sha256(file.read())\n"
    "value = b'atoll'\n"
    "for _ in range(int(sys.argv[1])): value = hashlib.sha256(value).digest()\n"
)
"""Reads the sources as a test does, and computes for a number of rounds."""
_PROBED_ROUNDS = 500_000


class _Raced(NamedTuple):
    """A race, as its steps were observed."""

    set_up: tuple[float, ...]
    """Of each attempt: from its turn until its command has started."""
    whole_s: float


class _Steps:
    """Listens to the steps of candidates."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: dict[tuple[str, str], float] = {}

    def __call__(self, step: str, subject: str) -> None:
        if step.startswith("race."):
            with self._lock:
                self._at[step, subject] = time.perf_counter()

    def set_up(self) -> tuple[float, ...]:
        with self._lock:
            launched = {
                name: at for (step, name), at in self._at.items() if step == "race.launched"
            }
            found = [at - self._at["race.starting", name] for name, at in launched.items()]
            self._at.clear()
        return tuple(found)


def measure(order: BenchOptions, on_progress: OnProgress) -> BenchReport:
    """A race of ten commands for each size. Raises PrerequisiteError when there is no room."""
    parent = require_parent(order)
    load_before = os.getloadavg()
    rows: list[Row] = []
    skipped: list[str] = []
    driver = ""
    for shape in order.shapes():
        with ExitStack() as stack:
            place = stack.enter_context(throwaway(parent))
            on_progress(f"{shape.name}: making a project of {shape.files:,} files")
            generated = generate(shape, place / "project")
            steps = _Steps()
            project = open_project(
                generated.root, home=place / "home", listen=steps, warn=on_progress
            )
            stack.enter_context(open_for(project))
            level = _level(project)
            driver = project.plan("probe", CapsuleSpec(level=level)).workspace.driver
            on_progress(f"{shape.name}: freezing its base")
            project.warm(thorough=False)
            settle_disk(place)
            subject = _Subject(project, generated, place, level, steps, order)
            rows += subject.races(on_progress, skipped)
            rows += subject.checks(on_progress)
    return BenchReport(
        machine=machine_of(parent, driver, load_before),
        projects=tuple(describe(shape) for shape in order.shapes()),
        rows=tuple(rows),
        skipped=tuple(skipped),
    )


def _level(project: Project) -> str:
    """The strongest that works here."""
    sandbox = levels.require_level("sandbox")
    return "clone" if levels.find_problems(sandbox, project.session.home) else sandbox.name


class _Subject(NamedTuple):
    project: Project
    generated: Generated
    place: Path
    level: str
    steps: _Steps
    order: BenchOptions

    @property
    def shape(self) -> Shape:
        return self.generated.shape

    def races(self, on_progress: OnProgress, skipped: list[str]) -> Iterator[Row]:
        size = self.shape.name
        on_progress(f"{size}: a race of {COUNT} commands")
        # The first race of all starts what later ones find running.
        self._race("first")
        raced = self._race("second")
        has_all = not self.order.quick
        count = COUNT if has_all else _FEW
        on_progress(f"{size}: {count} times git worktree add + cp -a")
        set_up, took = [], []
        for number in range(count):
            one, whole = self._with_worktree(number)
            set_up.append(one)
            took.append(whole)
        peer = "git worktree add + cp -a of what it lacks"
        aim = times_faster(20) if self.shape.ignored and self.order.scale == 1 else None
        yield Row(
            size, "set-up of an attempt, until its command starts", raced.set_up,
            peer, tuple(set_up), aim,
        )  # fmt: skip
        if has_all:
            yield Row(
                size, f"a race of {COUNT} commands with a check, in all", (raced.whole_s,),
                "the same with worktrees and copies, in turn", (sum(took),),
            )  # fmt: skip
        else:
            skipped.append(f"{size}: {COUNT} worktrees in all: slow, and `--quick` was asked for")

    def _race(self, name: str) -> _Raced:
        values = ",".join(str(number) for number in range(COUNT))
        request = RaceRequest(
            argv=("sh", "-c", _WORK), vary=(f"ATTEMPT={values}",), name=name, checks=(_TEST,),
            level=self.level, has_cross_tests=False,
        )  # fmt: skip
        handle = self.project.races.start(request)
        whole_s, status = measured(handle.carry_on)
        if not all(one.passes(status.race.spec.checks) for one in status.candidates):
            reasons = [one.candidate.reason or str(one.checks) for one in status.candidates]
            raise DriverError(f"the race did not come to its end: {reasons[0]}")
        set_up = self.steps.set_up()
        handle.remove(force=True)
        await_rest(self.project.session)
        return _Raced(set_up, whole_s)

    def _with_worktree(self, number: int) -> tuple[float, float]:
        """(set-up, all) of one attempt."""
        with peers.filled_worktree(self.generated, self.place) as (set_up_s, path):
            env = {"ATTEMPT": str(number)}
            work_s = timed(run, ("sh", "-c", _WORK), cwd=path, env=env)
            check_s = timed(run, ("sh", "-c", _TEST), cwd=path)
            return set_up_s, set_up_s + work_s + check_s

    def checks(self, on_progress: OnProgress) -> Iterator[Row]:
        """In turns: the machine may get busier meanwhile."""
        size, root = self.shape.name, str(self.generated.root)
        on_progress(f"{size}: a check in fresh capsules, and in place")
        long_s = _LONG_S * self.order.scale
        is_whole = self.order.scale == 1
        # The same program on both sides: a PATH inside may have another `python3` first.
        python = programs.require_program("python3")
        command = shlex.join((python, "-c", _CHECK, str(_rounds(long_s, root, python))))
        fresh, plain = self._check_in_turns("true")
        added = tuple(max(0.0, one - other) for one, other in zip(fresh, plain, strict=True))
        aim = at_most(_MOST * _LONG_S) if is_whole else None
        yield Row(size, "what a fresh capsule adds to an empty check", added, aim=aim)
        fresh, plain = self._check_in_turns(command)
        yield Row(
            size, f"a check of about {long_s:.1f} s in a fresh capsule", fresh,
            "the same command in the checkout", plain,
            at_most_times(1 + _MOST) if is_whole else None,
        )  # fmt: skip

    def _check_in_turns(self, command: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(in fresh capsules, in the checkout)"""
        root = str(self.generated.root)
        commit = str(git.find_commit("HEAD", cwd=root))
        tree = git.git("rev-parse", f"{commit}^{{tree}}", cwd=root).text.strip()
        target = CheckTarget(commit, tree, commit, self.level)
        checker = Checker(self.project.session, self.project.record)
        spec = CheckSpec(name="bench", command=command)
        fresh, plain = [], []
        for _ in range(1 + min(self.order.repeat, 2 * _FEW)):
            plain.append(timed(run, ("sh", "-c", command), cwd=root))
            took_s, [result] = measured(lambda: checker.check(target, [spec], again=True))
            if not result.passed:
                raise DriverError(f"the check ended as {result.status}: {result.message}")
            fresh.append(took_s)
            await_rest(self.project.session)
        # The first of each finds cold caches.
        return tuple(fresh[1:]), tuple(plain[1:])


def _rounds(wanted_s: float, root: str, python: str) -> int:
    """With so many rounds a check takes about that long here, its start and reading included."""

    def took_s(rounds: int) -> float:
        return timed(run, (python, "-c", _CHECK, str(rounds)), cwd=root)

    took_s(1)
    fixed_s = took_s(1)
    each_s = max(1e-8, (took_s(_PROBED_ROUNDS) - fixed_s) / _PROBED_ROUNDS)
    return max(1, round((wanted_s - fixed_s) / each_s))
