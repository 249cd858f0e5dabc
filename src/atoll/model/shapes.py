"""The JSON shapes that every interface answers with, as types.

They are a promise (`docs/reference/json.md`): fields are added, never renamed or removed, within
one version. `atoll.engine.shapes` fills them in.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class OutcomeShape(TypedDict):
    reason: str
    exit_code: int | None
    signal: int | None
    shell_code: int
    message: str | None
    leftover: int
    cpu_s: float | None
    max_rss_bytes: int | None


class RunShape(TypedDict):
    id: str
    capsule: str
    number: int
    argv: list[str]
    state: str
    background: bool
    tty: bool
    created_at: float
    ended_at: float | None
    outcome: OutcomeShape | None


class CapsuleShape(TypedDict):
    name: str
    level: str
    state: str
    branch: str | None
    base_ref: str
    base_commit: str
    workspace: str
    ports: dict[str, int]
    created_at: float
    time_limit_s: float | None
    disk_bytes: NotRequired[int]
    disk_is_complete: NotRequired[bool]
    runs: NotRequired[list[RunShape]]


class LimitShape(TypedDict):
    value: float
    held: str
    uncounted: list[str]


class SummaryShape(CapsuleShape):
    project: str
    paused: bool
    changed_files: int | None
    changed_files_complete: bool | None
    ahead: int | None
    behind: int | None


class ExcludedShape(TypedDict):
    uncommitted: list[str]
    secrets: list[str]
    unreadable: list[str]
    submodules: list[str]


class CapturedShape(TypedDict):
    stdout: str
    stderr: str
    stdout_dropped_bytes: int
    stderr_dropped_bytes: int


class ConnectionShape(TypedDict):
    """An attempt to reach something from inside a capsule."""

    at: float
    via: str
    place: str
    port: int
    allowed: bool
    why: str
    address: str | None
    sent: int
    received: int
    took_s: float | None
    times: int
    id: int
    ask: str
    failed: bool


class RunNetworkShape(TypedDict):
    refused: list[ConnectionShape]


class EndedRunShape(RunShape, CapturedShape):
    """A run in the foreground, with its output."""

    network: RunNetworkShape


class LogEntryShape(TypedDict):
    time: float
    stream: str
    text: str


class ProcessShape(TypedDict):
    run: str
    pid: int
    ppid: int
    command: str
    cpu_s: float
    rss_bytes: int
    age_s: float


class WorkShape(TypedDict):
    uncommitted: list[str]
    untracked: list[str]
    nested: list[str]
    unstorable: list[str]
    large: list[str]
    commits: int
    stashes: int
    ignored: int


class CapsuleDetailsShape(CapsuleShape):
    base_disk_bytes: int
    work: WorkShape
    network: str
    visible: list[str] | None
    limits: dict[str, LimitShape]
    paused: bool
    workspace_driver: str
    parts: dict[str, dict[str, str]]
    """Facts about each part that reports any, by the name of the part."""


class NewCapsuleShape(CapsuleShape):
    left_out: ExcludedShape


class PausedShape(TypedDict):
    name: str
    paused: bool
    processes: int


class RemovalShape(TypedDict):
    """What the removal of a capsule would do."""

    name: str
    workspace: str
    branch: str | None
    running: list[str]
    work: WorkShape


class PathShape(TypedDict):
    path: str


class CommitShape(TypedDict):
    commit: str
    branch: str | None


class ExportShape(TypedDict):
    branch: str
    commit: str
    moved: bool


class PatchShape(TypedDict):
    diff: str
    concealed: list[str]
    left_out: list[str]
    refused: str | None
    ignored: int


class RecoveryPointShape(TypedDict):
    id: str
    capsule: str
    ref: str
    commit: str
    base_commit: str
    head_commit: str
    stored_at: float
    files: str | None
    lacks: str | None
    standin: str | None


class RemovedShape(TypedDict):
    name: str
    recovery_point: RecoveryPointShape | None


class SnapshotShape(TypedDict):
    number: int
    message: str
    automatic: bool
    synced: bool
    created_at: float
    moment: str | None


class MomentShape(SnapshotShape):
    files: int
    removed: int
    bytes: int
    paths: list[str]


class RollbackShape(TypedDict):
    to: SnapshotShape
    before: SnapshotShape


class LayerShape(TypedDict):
    id: str
    kind: str
    about: str
    files: int
    bytes: int


class CheckedLayerShape(LayerShape):
    damaged: list[str]
    users: list[str]


class LeftOutShape(TypedDict):
    path: str
    reason: str


class BaseShape(TypedDict):
    disk_bytes: int
    layers: list[LayerShape]
    left_out: list[LeftOutShape]
    tracked_secrets: list[LeftOutShape]


class WindowShape(TypedDict):
    pid: int
    program: str


class PortShape(TypedDict):
    capsule: str
    name: str
    inside: int | None
    dynamic: int | None
    canonical: int | None
    url: str | None
    state: str


class RouterShape(TypedDict):
    port: int
    trouble: str | None


class RefusedPortShape(TypedDict):
    port: int
    reason: str


class RefusedPortsShape(TypedDict):
    ports: list[RefusedPortShape]
    more: int
    command: str | None


class ProjectPortsShape(TypedDict):
    """The daemon's report on the ports of a project's capsules."""

    router: RouterShape
    label: str
    note: str | None
    checked_out: str | None
    missing: list[str]
    not_canonical: RefusedPortsShape | None
    ports: list[PortShape]
    more: int


class PortReport(ProjectPortsShape):
    shared: bool


class ServedCapsuleShape(TypedDict):
    name: str
    directory: str
    problems: dict[str, str]


class DaemonStatusShape(TypedDict):
    pid: int
    since: float
    capsules: list[ServedCapsuleShape]
    watched: dict[str, int]
    freezing: bool
    version: NotRequired[str]


class BrowserShape(TypedDict):
    window: WindowShape | None
    profile: str | None
    inside: RunShape | None
    endpoint: str | None


class BrowserSettingsShape(TypedDict):
    tool: str
    settings: dict[str, object]


class OpenedShape(TypedDict):
    url: str
    pid: int | None
    run: RunShape | None


class StoppedDaemonShape(TypedDict):
    running: Literal[False]


class DaemonShape(DaemonStatusShape):
    running: bool


class DaemonLogShape(TypedDict):
    line: str


class RuleShape(TypedDict):
    rule: str
    source: str
    means: list[str]


class SettingShape(TypedDict):
    key: str
    value: object
    source: str


class ClaimShape(TypedDict):
    key: str
    text: str


class TrustShape(TypedDict):
    path: str
    digest: str
    claims: list[ClaimShape]


class UntrustShape(TypedDict):
    was_trusted: bool


class InitShape(TypedDict):
    path: str
    text: str
    written: bool


class CompletionShape(TypedDict):
    shell: str
    script: str


class PromiseShape(TypedDict):
    text: str
    kept: bool


class DemoShape(TypedDict):
    comparison: ComparisonShape
    promises: list[PromiseShape]
    as_promised: bool
    took_s: float


class SecretGrantShape(TypedDict):
    capsule: str
    granted_at: float
    expires_at: float | None
    expired: bool
    used_at: float | None


class SecretShape(TypedDict):
    """A secret of a project: never its value."""

    name: str
    state: str
    origin: str | None
    form: str | None
    hosts: list[str]
    allow: list[str]
    deny: list[str]
    repository: str | None
    upstream: str | None
    ttl_s: float | None
    created_at: float | None
    rotated_at: float | None
    used_at: float | None
    ends_at_once: bool
    grants: list[SecretGrantShape]


class SecretAuditShape(TypedDict):
    at: float
    secret: str
    capsule: str | None
    act: str
    detail: str


class VaultShape(TypedDict):
    passphrase: bool


class ErrorShape(TypedDict):
    type: str
    message: str
    hint: str | None
    exit_code: int
    mistakes: list[str]


class FindingShape(TypedDict):
    name: str
    good: bool
    needed: bool
    detail: str
    cure: str | None
    took_s: float


class LevelShape(TypedDict):
    name: str
    default: bool
    isolates: str
    shares: str
    cost: str
    here: bool
    problems: list[str]


class WallFindingShape(TypedDict):
    wall: str
    id: str
    title: str
    verdict: str
    detail: str


class WallReportShape(TypedDict):
    capsule: str
    level: str
    held: bool
    took_s: float
    attempts: list[WallFindingShape]


class CollectedShape(TypedDict):
    capsules: list[str]
    runs: list[str]
    files: list[str]
    recovered: list[str]
    restored: list[str]


class ModelUsageShape(TypedDict):
    model: str
    requests: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_usd: float | None


class AgentBudgetShape(TypedDict):
    time_s: float | None
    turns: int | None
    tokens: int | None
    cost_usd: float | None


class AgentShape(TypedDict):
    """An agent as it was observed."""

    capsule: str
    project: str
    agent: str
    state: str
    reason: str
    since: float
    task: str
    interactive: bool
    turns: int
    tokens: int
    cost_usd: float | None
    usage: list[ModelUsageShape]
    budget: AgentBudgetShape
    changed_files: int | None
    line: str
    run: str | None


class SpawnedShape(TypedDict):
    capsule: str
    agent: str
    branch: str | None
    run: str | None


class AvailableAgentShape(TypedDict):
    name: str
    title: str
    program: str | None
    version: str
    login: str
    usable: bool
    cure: str | None


class AgentEventShape(TypedDict):
    kind: str
    text: str
    tool: str
    call: str
    is_error: bool
    at: float | None


class CheckShape(TypedDict):
    command: str
    passed: bool
    exit_code: int
    run: int
    output: str


class VerdictShape(TypedDict):
    """What was observed at the end of a turn."""

    state: str
    reason: str
    at: float
    tree: str | None
    commit: str | None
    checks: list[CheckShape]


class TurnShape(TypedDict):
    number: int
    prompt: str
    at: float
    run: int | None
    running: bool
    verdict: VerdictShape | None
    events: list[AgentEventShape]


class TranscriptShape(TypedDict):
    capsule: str
    agent: str
    turns: list[TurnShape]


class SentMessageShape(TypedDict):
    capsule: str
    turn: int | None
    run: str | None
    typed: bool
    budget: AgentBudgetShape


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


class PromotionStepShape(TypedDict):
    """One act of a promotion, as the journal has it."""

    stage: str
    act: str
    state: str
    at: float
    commit: str | None
    tree: str | None
    branch: str | None
    old: str | None
    new: str | None
    way: str | None
    place: str | None
    command: str | None
    exit_code: int | None
    checks: list[int]
    accepted: list[str]
    by: str | None
    message: str | None
    output: str | None
    log: str | None


class PromotionCheckShape(TypedDict):
    """A stored check result that proves a step."""

    id: int
    name: str
    status: str
    tree: str
    at: float


class ApprovalShape(TypedDict):
    capsule: str
    stage: str
    tree: str
    by: str
    at: float


class PromotionShape(TypedDict):
    """The way of one commit of a capsule through the stages."""

    id: int
    capsule: str
    state: str
    to: str
    stages: list[str]
    passed: list[str]
    commit: str
    tree: str
    base: str
    agent: str | None
    created_at: float
    ended_at: float | None
    reason: str | None
    hint: str | None
    exit_code: int
    steps: list[PromotionStepShape]
    checks: list[PromotionCheckShape]
    approvals: list[ApprovalShape]
    left: list[str]
