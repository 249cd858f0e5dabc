"""Fills in the JSON shapes of `atoll.model.shapes`: one function for each thing that is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.model.state import (
    CapsuleRecord,
    Finding,
    Outcome,
    Patch,
    Process,
    RecoveryPoint,
    Run,
    Snapshot,
    Work,
)

if TYPE_CHECKING:
    from atoll.engine.browser.browsers import BrowserStatus
    from atoll.engine.capsule.disk_use import DiskUse
    from atoll.engine.capsule.overview import Summary
    from atoll.engine.capsule.reaper import Collected
    from atoll.engine.history.layers import Checked, Layer, LayerSummary
    from atoll.engine.history.snapshots import TimelineEntry
    from atoll.engine.project.excluded import Excluded
    from atoll.engine.project.levels import Level
    from atoll.engine.run.captured_output import Captured
    from atoll.engine.verify.wall_test import WallFinding, WallReport
    from atoll.keeper.log import LogEntry
    from atoll.model.shapes import (
        BaseShape,
        BrowserShape,
        CapsuleShape,
        CapturedShape,
        CheckedLayerShape,
        CollectedShape,
        ExcludedShape,
        FindingShape,
        LayerShape,
        LevelShape,
        LogEntryShape,
        MomentShape,
        OutcomeShape,
        PatchShape,
        ProcessShape,
        RecoveryPointShape,
        RunShape,
        SnapshotShape,
        SummaryShape,
        WallFindingShape,
        WallReportShape,
        WorkShape,
    )
    from atoll.model.state import Problem


def capsule(
    record: CapsuleRecord, *, runs: list[Run] | None = None, used: DiskUse | None = None
) -> CapsuleShape:
    shape: CapsuleShape = {
        "name": record.name,
        "level": record.level,
        "state": str(record.state),
        "branch": record.branch,
        "base_ref": record.base_ref,
        "base_commit": record.base_commit,
        "workspace": record.workspace,
        "ports": record.ports,
        "created_at": record.created_at,
        "time_limit_s": record.time_limit_s,
    }
    if used is not None:
        shape |= {"disk_bytes": used.bytes, "disk_is_complete": used.is_complete}
    return shape if runs is None else {**shape, "runs": [run(item) for item in runs]}


def summary(record: Summary) -> SummaryShape:
    """A capsule as `ls` shows it."""
    changed = record.changed
    return {
        **capsule(record.capsule, runs=record.runs, used=record.disk),
        "project": record.project,
        "paused": record.is_paused,
        "changed_files": None if changed is None else changed.files,
        "changed_files_complete": None if changed is None else changed.is_complete,
        "ahead": record.ahead,
        "behind": record.behind,
    }


def excluded(found: Excluded) -> ExcludedShape:
    return {
        "uncommitted": list(found.uncommitted),
        "secrets": list(found.secrets),
        "unreadable": list(found.unreadable),
        "submodules": list(found.submodules),
    }


def run(record: Run) -> RunShape:
    return {
        "id": record.label,
        "capsule": record.capsule_name,
        "number": record.number,
        "argv": list(record.argv),
        "state": str(record.state),
        "background": record.background,
        "tty": record.tty,
        "created_at": record.created_at,
        "ended_at": record.ended_at,
        "outcome": None if record.outcome is None else outcome(record.outcome),
    }


def outcome(record: Outcome) -> OutcomeShape:
    return {
        "reason": str(record.reason),
        "exit_code": record.exit_code,
        "signal": record.signal,
        "shell_code": record.shell_code,
        "message": record.message,
        "leftover": record.leftover,
        "cpu_s": record.cpu_s,
        "max_rss_bytes": record.max_rss_bytes,
    }


def captured(record: Captured) -> CapturedShape:
    """A run's output; bytes that are not UTF-8 are replaced."""
    return {
        "stdout": record.content("out").decode(errors="replace"),
        "stderr": record.content("err").decode(errors="replace"),
        "stdout_dropped_bytes": record.dropped_bytes("out"),
        "stderr_dropped_bytes": record.dropped_bytes("err"),
    }


def log_entry(record: LogEntry) -> LogEntryShape:
    return {
        "time": record.time,
        "stream": record.stream,
        "text": record.data.decode(errors="replace"),
    }


def process(owner: Run, record: Process) -> ProcessShape:
    return {
        "run": owner.label,
        "pid": record.pid,
        "ppid": record.ppid,
        "command": record.command,
        "cpu_s": record.cpu_s,
        "rss_bytes": record.rss_bytes,
        "age_s": round(record.age_s, 2),
    }


def work(record: Work) -> WorkShape:
    return {
        "uncommitted": list(record.uncommitted),
        "untracked": list(record.untracked),
        "nested": list(record.nested),
        "unstorable": list(record.unstorable),
        "large": list(record.large),
        "commits": record.commits,
        "stashes": record.stashes,
        "ignored": record.ignored,
    }


def patch(record: Patch) -> PatchShape:
    return {
        "diff": record.text.decode(errors="replace"),
        "concealed": list(record.concealed),
        "left_out": list(record.left_out),
        "refused": record.refused,
        "ignored": record.ignored,
    }


def recovery_point(record: RecoveryPoint) -> RecoveryPointShape:
    return {
        "id": record.id,
        "capsule": record.capsule,
        "ref": record.ref,
        "commit": record.commit,
        "base_commit": record.base_commit,
        "head_commit": record.head_commit,
        "stored_at": record.stored_at,
        "files": record.files,
        "lacks": record.lacks or None,
        "standin": record.repository or None,
    }


def snapshot(record: Snapshot) -> SnapshotShape:
    return {
        "number": record.number,
        "message": record.message,
        "automatic": record.is_automatic,
        "synced": record.synced,
        "created_at": record.created_at,
        "moment": record.moment or None,
    }


def moment(record: TimelineEntry) -> MomentShape:
    return {
        **snapshot(record.snapshot),
        "files": record.files,
        "removed": record.removed,
        "bytes": record.bytes,
        "paths": list(record.paths),
    }


def layer(record: Layer) -> LayerShape:
    return {
        "id": record.id,
        "kind": record.kind,
        "about": record.about,
        "files": record.files,
        "bytes": record.bytes,
    }


def checked_layer(record: Checked) -> CheckedLayerShape:
    return {**layer(record.layer), "damaged": record.damaged, "users": record.users}


def checked_base(different: list[str]) -> CheckedLayerShape:
    """All layers together, in which files differ from the project."""
    from atoll.engine.history.layers import Checked, Layer  # noqa: PLC0415 - for one verb

    whole = Layer(id="base", kind="base", about="all layers together")
    return checked_layer(Checked(whole, different, []))


def base(record: LayerSummary, used: DiskUse) -> BaseShape:
    return {
        "disk_bytes": used.bytes,
        "layers": [layer(item) for item in record.layers],
        "left_out": [{"path": item.path, "reason": item.reason} for item in record.left_out],
        "tracked_secrets": [
            {"path": item.path, "reason": item.reason} for item in record.tracked_secrets
        ],
    }


def browser(record: BrowserStatus) -> BrowserShape:
    window = record.window
    return {
        "window": None if window is None else {"pid": window.pid, "program": window.program},
        "profile": record.profile,
        "inside": None if record.inside is None else run(record.inside),
        "endpoint": record.endpoint,
    }


def finding(record: Finding) -> FindingShape:
    return {
        "name": record.name,
        "good": record.good,
        "needed": record.needed,
        "detail": record.detail,
        "cure": record.cure,
        "took_s": round(record.took_s, 4),
    }


def level(record: Level, problems: list[Problem]) -> LevelShape:
    return {
        "name": record.name,
        "default": record.is_default,
        "isolates": record.isolates,
        "shares": record.shares,
        "cost": record.cost,
        "here": not problems,
        "problems": [problem.what for problem in problems],
    }


def verification(record: WallReport) -> WallReportShape:
    return {
        "capsule": record.capsule,
        "level": record.level,
        "held": not record.breaches,
        "took_s": round(record.took_s, 2),
        "attempts": [attempt(item) for item in record.findings],
    }


def attempt(record: WallFinding) -> WallFindingShape:
    return {
        "wall": record.wall,
        "id": record.id,
        "title": record.title,
        "verdict": record.verdict,
        "detail": record.detail,
    }


def collected(record: Collected) -> CollectedShape:
    return {
        "capsules": list(record.capsules),
        "runs": list(record.runs),
        "files": list(record.files),
        "recovered": list(record.recovered),
        "restored": list(record.restored),
    }
