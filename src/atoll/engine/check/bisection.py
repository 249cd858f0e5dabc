"""`atoll bisect`: after which run or snapshot of a capsule a check began to fail.

The time line is the one that led to the present state: what a rollback left behind is not part of
it. Each point is tried in a fork that is thrown away, as it is, with everything lying around.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import NamedTuple

from atoll.engine.capsule import parts
from atoll.engine.capsule.temporary import Workbench
from atoll.engine.check import attempts
from atoll.engine.check.capsule_checks import project_of
from atoll.engine.check.capsule_handle import CapsuleHandle
from atoll.engine.check.selection import select_checks
from atoll.engine.history.workspace import require_layers
from atoll.engine.state.session import Session
from atoll.model.check import CheckSpec, CheckStatus
from atoll.model.errors import AtollError, Interrupted, SpecError, StateError
from atoll.model.names import printable
from atoll.model.state import CapsuleRecord, ProjectRecord, Run, Snapshot, SnapshotKind


class PointVerdict(StrEnum):
    GOOD = "good"
    BAD = "bad"
    UNDECIDABLE = "undecidable"
    """Flaky, or it could not be run there."""


class Point(NamedTuple):
    """A state of the capsule on its time line."""

    snapshot: Snapshot
    since: float
    """When the capsule left the state before it on the line."""


class Tried(NamedTuple):
    """What the check said at a point."""

    point: Point
    verdict: PointVerdict
    message: str = ""


class BisectState(StrEnum):
    FOUND = "found"
    NEVER_BAD = "never-bad"
    """It passes at the newest point."""
    ALWAYS_BAD = "always-bad"
    """It fails at the oldest point already."""
    UNDECIDABLE = "undecidable"
    """It cannot be decided at one of the ends."""


class BisectReport(NamedTuple):
    check: str
    state: BisectState
    points: int
    """How many the time line has."""
    tried: tuple[Tried, ...]
    """In the order of the line."""
    good: Snapshot | None = None
    """The last point where it passes."""
    bad: Snapshot | None = None
    """The first point where it fails."""
    between: tuple[Snapshot, ...] = ()
    """Points between both at which it cannot be decided."""
    runs: tuple[Run, ...] = ()
    """Those that were active between both."""


def line_of(snapshots: Sequence[Snapshot]) -> list[Point]:
    """The points that led to the state after the last snapshot, the oldest first. Pure.

    A rollback stores the state that it replaces as a snapshot, and goes on from its target: the
    states between both are on another line.
    """
    by_number = {snapshot.number: snapshot for snapshot in snapshots}
    points: list[Point] = []
    number = max(by_number, default=0)
    left_at: float | None = None
    while number > 0:
        snapshot = by_number.get(number)
        if snapshot is None:
            number -= 1
            continue
        if snapshot.kind is SnapshotKind.ROLLBACK:
            # Without a target, which early versions did not note, the line begins here.
            left_at = snapshot.created_at if left_at is None else left_at
            number = min(snapshot.target or 0, number - 1)
            continue
        if points:
            points[-1] = points[-1]._replace(since=left_at or snapshot.created_at)
        points.append(Point(snapshot, since=0.0))
        left_at = None
        number -= 1
    return points[::-1]


def choose_probes(low: int, high: int, skipped: set[int], count: int) -> list[int]:
    """Up to `count` points strictly between two, evenly spread, without those to skip. Pure."""
    left = [index for index in range(low + 1, high) if index not in skipped]
    if len(left) <= count:
        return left
    step = len(left) / (count + 1)
    return [left[int(step * (part + 1))] for part in range(count)]


def runs_between(found: Sequence[Run], points: Sequence[Point]) -> tuple[Run, ...]:
    """The runs that were active while the capsule came to one of the points. Pure."""

    def is_active(run: Run, point: Point) -> bool:
        has_begun = run.created_at <= point.snapshot.created_at
        return has_begun and (run.ended_at is None or run.ended_at > point.since)

    return tuple(
        run for run in found if not run.internal and any(is_active(run, one) for one in points)
    )


class Bisection:
    """One search."""

    def __init__(
        self,
        session: Session,
        project: ProjectRecord,
        capsule: CapsuleRecord,
        check: CheckSpec,
        *,
        most: int,
        on_tried: Callable[[Tried], None],
    ) -> None:
        self._session = session
        self._project = project
        self._capsule = capsule
        self._check = check
        self._most = most
        self._on_tried = on_tried
        self._tried: dict[int, Tried] = {}

    def search(self, line: Sequence[Point], low: int, high: int) -> BisectReport:
        """Finds the first bad point after `low` and up to `high`."""
        with Workbench(self._session, self._project, stem="bisect").open() as bench:
            ends = list(dict.fromkeys((high, low)))
            self._try(bench, line, ends)
            state = self._judge_ends(low, high)
            if state is not BisectState.FOUND:
                return self._report(state, line)
            while probes := choose_probes(low, high, self._skipped, self._most):
                self._try(bench, line, probes)
                low, high = self._narrow(low, high)
        between = line[low + 1 : high + 1]
        return self._report(BisectState.FOUND, line)._replace(
            good=line[low].snapshot,
            bad=line[high].snapshot,
            between=tuple(point.snapshot for point in between[:-1]),
            runs=runs_between(self._session.store.runs(self._capsule), between),
        )

    @property
    def _skipped(self) -> set[int]:
        return {n for n, one in self._tried.items() if one.verdict is PointVerdict.UNDECIDABLE}

    def _judge_ends(self, low: int, high: int) -> BisectState:
        oldest, newest = (self._tried[index].verdict for index in (low, high))
        if newest is PointVerdict.GOOD:
            return BisectState.NEVER_BAD
        if oldest is PointVerdict.BAD:
            return BisectState.ALWAYS_BAD
        is_open = oldest is PointVerdict.GOOD and newest is PointVerdict.BAD
        return BisectState.FOUND if is_open else BisectState.UNDECIDABLE

    def _narrow(self, low: int, high: int) -> tuple[int, int]:
        """The first change from good to bad among the tried points."""
        inner = {n: one.verdict for n, one in self._tried.items() if low <= n <= high}
        first = min(n for n, verdict in inner.items() if verdict is PointVerdict.BAD)
        last = max(n for n, verdict in inner.items() if verdict is PointVerdict.GOOD and n < first)
        return last, first

    def _report(self, state: BisectState, line: Sequence[Point]) -> BisectReport:
        tried = tuple(self._tried[index] for index in sorted(self._tried))
        return BisectReport(self._check.name, state, len(line), tried)

    def _try(self, bench: Workbench, line: Sequence[Point], indexes: Sequence[int]) -> None:
        """Tries several points at once."""
        is_ended = False

        def tried(index: int) -> Tried:
            return self._decide(bench, line[index], lambda: is_ended)

        with ThreadPoolExecutor(max_workers=self._most) as pool:
            futures = {index: pool.submit(tried, index) for index in indexes}
            try:
                for index, future in futures.items():
                    self._tried[index] = future.result()
                    self._on_tried(self._tried[index])
            except BaseException:
                is_ended = True
                pool.shutdown(wait=False, cancel_futures=True)
                attempts.end_all(self._session, bench, futures.values())
                raise

    def _decide(self, bench: Workbench, point: Point, is_ended: Callable[[], bool]) -> Tried:
        """What the check says at a point. A failure is tried once more: if it passes then, it
        cannot be decided.
        """
        made: list[attempts.Attempt] = []
        while len(made) < 2 and not is_ended():
            made.append(self._attempt(bench, point))
            if made[-1].status in (CheckStatus.PASSED, CheckStatus.ERROR):
                break
        statuses = {one.status for one in made}
        message = made[-1].message if made else ""
        if CheckStatus.ERROR in statuses or not made:
            return Tried(point, PointVerdict.UNDECIDABLE, message)
        if statuses == {CheckStatus.PASSED}:
            return Tried(point, PointVerdict.GOOD)
        if CheckStatus.PASSED in statuses:
            return Tried(point, PointVerdict.UNDECIDABLE, "flaky: it passed after it had failed")
        return Tried(point, PointVerdict.BAD, message)

    def _attempt(self, bench: Workbench, point: Point) -> attempts.Attempt:
        try:
            fork = bench.fork(self._capsule, point.snapshot)
        except Interrupted:
            raise
        except AtollError as error:
            return attempts.failed_to_run(error)
        try:
            start = attempts.starter(self._session, fork)
            return attempts.run_in(self._session, fork, self._check, start)
        except Interrupted:
            raise
        except AtollError as error:
            return attempts.failed_to_run(error)
        finally:
            bench.remove(fork)


def bisect(
    subject: CapsuleHandle,
    check: str | None,
    *,
    good: str | None,
    bad: str | None,
    most: int | None,
    on_tried: Callable[[Tried], None] | None,
) -> BisectReport:
    """Finds the first point at which a check fails; nothing of it is stored."""
    session, capsule = subject.session, subject.record
    require_layers(session, capsule)
    project = project_of(session, capsule)
    spec = require_one(select_checks(session, project, [] if check is None else [check]))
    ends = [None if text is None else subject.require_snapshot(text) for text in (good, bad)]
    line = present_line(subject)
    low, high = find_bounds(capsule, line, *ends)
    search = Bisection(
        session, project, capsule, spec,
        most=len(os.sched_getaffinity(0)) if most is None else most,
        on_tried=on_tried or (lambda _: None),
    )  # fmt: skip
    return search.search(line, low, high)


def present_line(subject: CapsuleHandle) -> list[Point]:
    """The time line with the present state as its last point, for which a snapshot is taken if
    there is none.
    """
    session, capsule = subject.session, subject.record
    is_new = not session.store.snapshots(capsule) or any(
        part.has_changed(session, capsule) for part in parts.registered()
    )
    if is_new:
        subject.snapshot("before bisect", automatic=True)
    return line_of(session.store.snapshots(capsule))


def find_bounds(
    capsule: CapsuleRecord, line: Sequence[Point], good: Snapshot | None, bad: Snapshot | None
) -> tuple[int, int]:
    """The indexes of both ends. Raises StateError when a snapshot is not on the line."""
    numbers = [point.snapshot.number for point in line]
    ends = []
    for snapshot, default in ((good, 0), (bad, len(line) - 1)):
        if snapshot is not None and snapshot.number not in numbers:
            raise StateError(
                f"snapshot {snapshot.number} did not lead to the present state of "
                f"`{capsule.name}`: a rollback left it behind",
                hint="choose one of " + ", ".join(map(str, numbers)),
            )
        ends.append(default if snapshot is None else numbers.index(snapshot.number))
    low, high = ends
    if low >= high and (good is not None or bad is not None):
        raise SpecError("the good snapshot must be older than the bad one")
    return low, high


def require_one(specs: Sequence[CheckSpec]) -> CheckSpec:
    """The only check. Raises SpecError when there are several."""
    if len(specs) > 1:
        names = ", ".join(f"`{printable(spec.name)}`" for spec in specs)
        raise SpecError(f"there are several checks: {names}", hint=f"--check {specs[0].name}")
    return specs[0]
