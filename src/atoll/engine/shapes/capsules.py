"""Fills in the shapes of capsules, runs, work and snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.engine.browser.browsers import BrowserStatus
    from atoll.engine.capsule.disk_use import DiskUse
    from atoll.engine.capsule.exports import Exported
    from atoll.engine.capsule.overview import Summary
    from atoll.engine.capsules import Capsule
    from atoll.engine.history.snapshots import TimelineEntry
    from atoll.engine.network.egress_log import EgressAttempt
    from atoll.engine.project.excluded import Excluded
    from atoll.engine.run.captured_output import Captured
    from atoll.keeper.log import LogEntry
    from atoll.model.shapes import (
        BrowserSettingsShape,
        BrowserShape,
        CapsuleDetailsShape,
        CapsuleShape,
        CapturedShape,
        CommitShape,
        ConnectionShape,
        EndedRunShape,
        ExcludedShape,
        ExportShape,
        LogEntryShape,
        MomentShape,
        NewCapsuleShape,
        OpenedShape,
        OutcomeShape,
        PatchShape,
        PathShape,
        PausedShape,
        ProcessShape,
        RecoveryPointShape,
        RemovalShape,
        RemovedShape,
        RollbackShape,
        RunNetworkShape,
        RunShape,
        SnapshotShape,
        SummaryShape,
        WorkShape,
    )
    from atoll.model.state import (
        CapsuleRecord,
        Outcome,
        Patch,
        Process,
        RecoveryPoint,
        Run,
        Snapshot,
        Work,
    )


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


def capsule_details(
    found: Capsule, unexported: Work, *, runs: list[Run], used: DiskUse, shared: DiskUse
) -> CapsuleDetailsShape:
    """A capsule as `show` shows it; `shared` is used by all capsules of the project."""
    return {
        **capsule(found.record, runs=runs, used=used),
        "base_disk_bytes": shared.bytes,
        "work": work(unexported),
        "network": found.network,
        "visible": found.visible(),
        "limits": {
            key: {"value": value, "held": how, "uncounted": list(found.uncounted(key, how))}
            for key, (value, how) in found.limits().items()
        },
        "paused": found.is_paused,
        "workspace_driver": found.workspace_driver,
        "parts": found.report(),
    }


def new_capsule(record: CapsuleRecord, left_out: Excluded) -> NewCapsuleShape:
    return {**capsule(record), "left_out": excluded(left_out)}


def paused(name: str, processes: int, *, is_paused: bool) -> PausedShape:
    return {"name": name, "paused": is_paused, "processes": processes}


def removal(
    record: CapsuleRecord, running: list[Run], found: Work, *, keep_branch: bool
) -> RemovalShape:
    return {
        "name": record.name,
        "workspace": record.workspace,
        "branch": None if keep_branch else record.branch,
        "running": [item.label for item in running],
        "work": work(found),
    }


def removed(name: str, point: RecoveryPoint | None) -> RemovedShape:
    return {"name": name, "recovery_point": None if point is None else recovery_point(point)}


def path(place: str) -> PathShape:
    return {"path": place}


def commit(commit_id: str, branch: str | None) -> CommitShape:
    return {"commit": commit_id, "branch": branch}


def export(record: Exported) -> ExportShape:
    return {"branch": record.branch, "commit": record.commit, "moved": record.moved}


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


def connection(record: EgressAttempt) -> ConnectionShape:
    return {
        "at": record.at,
        "via": record.via,
        "place": record.place,
        "port": record.port,
        "allowed": record.allowed,
        "why": record.why,
        "address": record.address,
        "sent": record.sent,
        "received": record.received,
        "took_s": record.took_s,
        "times": record.times,
        "id": record.id,
        "ask": record.ask,
        "failed": record.failed,
    }


def ended_run(record: Run, output: Captured, refused: list[EgressAttempt]) -> EndedRunShape:
    network: RunNetworkShape = {"refused": [connection(attempt) for attempt in refused]}
    return {**run(record), **captured(output), "network": network}


def log_entry(record: LogEntry) -> LogEntryShape:
    return log_output(record.time, record.stream, record.data)


def log_output(time: float, stream: str, data: bytes) -> LogEntryShape:
    """A piece of output as it arrives, or as the log has it."""
    return {"time": time, "stream": stream, "text": data.decode(errors="replace")}


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


def rollback(to: Snapshot, before: Snapshot) -> RollbackShape:
    return {"to": snapshot(to), "before": snapshot(before)}


def browser(record: BrowserStatus) -> BrowserShape:
    window = record.window
    return {
        "window": None if window is None else {"pid": window.pid, "program": window.program},
        "profile": record.profile,
        "inside": None if record.inside is None else run(record.inside),
        "endpoint": record.endpoint,
    }


def browser_settings(tool: str, settings: dict[str, object]) -> BrowserSettingsShape:
    return {"tool": tool, "settings": settings}


def opened(url: str, *, pid: int | None = None, inside: Run | None = None) -> OpenedShape:
    return {"url": url, "pid": pid, "run": None if inside is None else run(inside)}
