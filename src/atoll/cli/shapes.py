"""The JSON shapes: one function per thing that a verb can answer with.

They are a promise (`docs/reference/json.md`): fields are added, never renamed or removed, within
one version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.model.state import (
    Capsule,
    Finding,
    Outcome,
    Process,
    RecoveryPoint,
    Run,
    Snapshot,
    Work,
)

if TYPE_CHECKING:
    from atoll.engine.browsers import Status as Browsers
    from atoll.engine.captured import Captured
    from atoll.engine.disk_use import DiskUse
    from atoll.engine.excluded import Excluded
    from atoll.engine.layers import Layer
    from atoll.engine.overview import Summary
    from atoll.engine.timeline import Moment
    from atoll.engine.verify import attempt as verify

Shape = dict[str, object]


def capsule(
    record: Capsule, *, runs: list[Run] | None = None, used: DiskUse | None = None
) -> Shape:
    shape: Shape = {
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


def summary(record: Summary) -> Shape:
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


def excluded(found: Excluded) -> Shape:
    return {
        "uncommitted": list(found.uncommitted),
        "secrets": list(found.secrets),
        "unreadable": list(found.unreadable),
        "submodules": list(found.submodules),
    }


def run(record: Run) -> Shape:
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


def outcome(record: Outcome) -> Shape:
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


def captured(record: Captured) -> Shape:
    """A run's output; of bytes that are no UTF-8, replacements."""
    return {
        "stdout": record.content("out").decode(errors="replace"),
        "stderr": record.content("err").decode(errors="replace"),
        "stdout_dropped_bytes": record.dropped_bytes("out"),
        "stderr_dropped_bytes": record.dropped_bytes("err"),
    }


def process(owner: Run, record: Process) -> Shape:
    return {
        "run": owner.label,
        "pid": record.pid,
        "ppid": record.ppid,
        "command": record.command,
        "cpu_s": record.cpu_s,
        "rss_bytes": record.rss_bytes,
        "age_s": round(record.age_s, 2),
    }


def work(record: Work) -> Shape:
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


def recovery_point(record: RecoveryPoint) -> Shape:
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


def snapshot(record: Snapshot) -> Shape:
    return {
        "number": record.number,
        "message": record.message,
        "automatic": record.automatic,
        "synced": record.synced,
        "created_at": record.created_at,
        "moment": record.moment or None,
    }


def moment(record: Moment) -> Shape:
    return {
        **snapshot(record.snapshot),
        "files": record.files,
        "removed": record.removed,
        "bytes": record.bytes,
        "paths": list(record.paths),
    }


def layer(record: Layer) -> Shape:
    return {
        "id": record.id,
        "kind": record.kind,
        "about": record.about,
        "files": record.files,
        "bytes": record.bytes,
    }


def browser(record: Browsers) -> Shape:
    window = record.window
    return {
        "window": None if window is None else {"pid": window.pid, "program": window.program},
        "profile": record.profile,
        "inside": None if record.inside is None else run(record.inside),
        "endpoint": record.endpoint,
    }


def finding(record: Finding) -> Shape:
    return {
        "name": record.name,
        "good": record.good,
        "needed": record.needed,
        "detail": record.detail,
        "cure": record.cure,
        "took_s": round(record.took_s, 4),
    }


def verification(record: verify.Report) -> Shape:
    return {
        "capsule": record.capsule,
        "level": record.level,
        "held": not record.breaches,
        "took_s": round(record.took_s, 2),
        "attempts": [attempt(finding) for finding in record.findings],
    }


def attempt(record: verify.Finding) -> Shape:
    return {
        "wall": record.wall,
        "id": record.id,
        "title": record.title,
        "verdict": record.verdict,
        "detail": record.detail,
    }
