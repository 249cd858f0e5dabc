"""The JSON shapes of races and what came of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from atoll.model.shapes.checks import CheckResultShape, FigureShape


class PromiseShape(TypedDict):
    text: str
    kept: bool


class DemoShape(TypedDict):
    comparison: ComparisonShape
    promises: list[PromiseShape]
    as_promised: bool
    took_s: float


class ObservedCheckShape(TypedDict):
    """A check of a race on one tree; `status` is null if it was not run there."""

    name: str
    status: str | None
    message: str
    took_s: float | None
    tests_passed: int | None
    tests_failed: int | None
    tests_skipped: int | None


class ChangedFileShape(TypedDict):
    path: str
    status: str
    added: int
    deleted: int
    binary: bool


class CrossScoreShape(TypedDict):
    passed: int
    ran: int


class CandidateEvidenceShape(TypedDict):
    name: str
    position: int
    state: str
    reason: str
    agent: str
    model: str
    graft: list[str]
    commit: str | None
    tree: str | None
    same_tree: list[str]
    checks: list[ObservedCheckShape]
    figures: dict[str, FigureShape]
    base_tests: str
    crosstests: CrossScoreShape | None
    files: list[ChangedFileShape]
    lines_added: int
    lines_deleted: int
    changed_tests: list[str]
    deleted_tests: int
    deleted_test_files: list[str]
    skipped_tests: int
    assertions_removed: int
    dependencies: list[str]
    locks: list[str]
    risky: list[str]
    new_warnings: int | None
    took_s: float | None
    tokens: int
    cost_usd: float | None
    judged: int | None
    undecided: bool
    obstacle: str | None
    removed: bool


class ComparedBaseShape(TypedDict):
    commit: str
    tree: str
    checks: list[ObservedCheckShape]
    figures: dict[str, FigureShape]
    passes: bool | None


class MatrixColumnShape(TypedDict):
    tree: str
    names: list[str]


class MatrixCellShape(TypedDict):
    status: str
    tree: str | None
    tests_passed: int
    tests_failed: int
    reason: str


class MatrixRowShape(TypedDict):
    names: list[str]
    files: list[str]
    counts: bool
    cells: list[MatrixCellShape]


class MatrixShape(TypedDict):
    columns: list[MatrixColumnShape]
    rows: list[MatrixRowShape]


class JudgementShape(TypedDict):
    command: str
    at: float
    ranks: dict[str, int]
    undecided: list[str]


class ComparisonShape(TypedDict):
    """What was observed of the candidates of a race."""

    race: str
    task: str
    state: str
    created_at: float
    winner: str | None
    rule: str
    base: ComparedBaseShape
    candidates: list[CandidateEvidenceShape]
    matrix: MatrixShape
    judgement: JudgementShape | None
    notes: list[str]


class CandidateDiffShape(TypedDict):
    diff: str
    complete: bool


class RejectedShape(TypedDict):
    name: str
    reason: str


class PickedShape(TypedDict):
    race: str
    winner: str | None
    reason: str
    by_hand: bool
    obstacle: str | None
    rule: str
    runner_up: str | None
    ranking: list[str]
    rejected: list[RejectedShape]
    judgement: JudgementShape | None
    discarded: list[str]


class GraftShape(TypedDict):
    race: str
    name: str
    parts: list[str]
    branch: str
    commit: str
    tree: str
    checks: list[ObservedCheckShape]


class CandidateShape(TypedDict):
    name: str
    position: int
    state: str
    reason: str
    agent: str | None
    command: list[str]
    prompt: str
    model: str
    variables: dict[str, str]
    graft: list[str]
    attempts: int
    run: str | None
    exit_code: int | None
    started_at: float | None
    ended_at: float | None
    took_s: float | None
    commit: str | None
    tree: str | None
    changed_files: int
    added_lines: int
    removed_lines: int
    tokens: int
    cost_usd: float | None
    capsule: bool
    checks: list[CheckResultShape]
    passed: bool


class RacePromotionShape(TypedDict):
    """What came of `--promote`."""

    stage: str
    winner: str | None
    good: bool
    message: str


class RaceShape(TypedDict):
    """A race as it was observed."""

    name: str
    task: str
    state: str
    carried_on: bool
    good: bool
    winner: str | None
    base_ref: str
    base_commit: str
    created_at: float
    ended_at: float | None
    check_names: list[str]
    base_checks: list[CheckResultShape]
    candidates: list[CandidateShape]
    promotion: RacePromotionShape | None
