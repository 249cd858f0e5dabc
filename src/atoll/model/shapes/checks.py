"""The JSON shapes of checks, trials and bisections."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from atoll.model.shapes.capsules import EndedRunShape, RunShape, SnapshotShape


class FigureShape(TypedDict):
    name: str
    value: float
    unit: str
    better: str | None


class TestCountsShape(TypedDict):
    passed: int
    failed: int
    skipped: int
    names: list[str]
    failures: list[str]


class CheckResultShape(TypedDict):
    """What was observed when a check ran on a tree."""

    id: int | None
    check: str
    command: str
    digest: str
    status: str
    passed: bool
    known: bool
    tree: str | None
    commit: str | None
    at: float
    took_s: float
    exit_code: int | None
    attempts: int
    figures: list[FigureShape]
    tests: TestCountsShape | None
    warnings: int
    message: str
    output: str
    log: str | None


class CheckReportShape(TypedDict):
    capsule: str
    commit: str | None
    tree: str | None
    here: bool
    passed: bool
    detected: bool
    uncommitted: bool
    checks: list[CheckResultShape]


class TrialShape(TypedDict):
    capsule: str
    kept: bool
    before: SnapshotShape
    attempt: SnapshotShape | None
    run: EndedRunShape
    checks: CheckReportShape | None


class BisectPointShape(TypedDict):
    snapshot: SnapshotShape
    verdict: str
    message: str


class BisectShape(TypedDict):
    capsule: str
    check: str
    state: str
    points: int
    tried: list[BisectPointShape]
    good: SnapshotShape | None
    bad: SnapshotShape | None
    between: list[SnapshotShape]
    runs: list[RunShape]
