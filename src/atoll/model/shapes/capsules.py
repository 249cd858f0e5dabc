"""The JSON shapes of capsules, runs, work and snapshots."""

from __future__ import annotations

from typing import NotRequired, TypedDict


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
