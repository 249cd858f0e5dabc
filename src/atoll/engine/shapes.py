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
    from collections.abc import Sequence

    from atoll.engine.agent.agents import SentMessage, TurnView
    from atoll.engine.agent.observation import AgentStatus
    from atoll.engine.agent.selection import AvailableAgent
    from atoll.engine.agent.verdicts import TurnVerdict
    from atoll.engine.browser.browsers import BrowserStatus
    from atoll.engine.capsule.disk_use import DiskUse
    from atoll.engine.capsule.exports import Exported
    from atoll.engine.capsule.overview import Summary
    from atoll.engine.capsule.reaper import Collected
    from atoll.engine.capsules import Capsule
    from atoll.engine.check.bisection import BisectReport
    from atoll.engine.check.capsule_checks import CheckReport
    from atoll.engine.check.trials import TrialReport
    from atoll.engine.demo import Demo
    from atoll.engine.history.layers import Checked, Layer, LayerSummary
    from atoll.engine.history.snapshots import TimelineEntry
    from atoll.engine.network.egress_log import EgressAttempt
    from atoll.engine.network.rules import Allowed
    from atoll.engine.project.excluded import Excluded
    from atoll.engine.project.levels import Level
    from atoll.engine.project.settings import ProjectFileText
    from atoll.engine.promotion.promotions import PromotionReport
    from atoll.engine.race.candidate_diffs import BoundedPatch
    from atoll.engine.race.report import CandidateStatus, RaceStatus
    from atoll.engine.race.results import Grafted, Picked
    from atoll.engine.race.unattended import UnattendedEnd
    from atoll.engine.run.captured_output import Captured
    from atoll.engine.secret.listing import GrantStatus, SecretStatus
    from atoll.engine.verify.wall_test import WallFinding, WallReport
    from atoll.keeper.log import LogEntry
    from atoll.model.agent import AgentBudget, AgentEvent, ModelUsage
    from atoll.model.check import CheckResult, CheckSpec, Figure
    from atoll.model.evidence import CandidateEvidence, Cell, Judgement, Matrix, RaceEvidence
    from atoll.model.promotion import Approval, PromotionStep
    from atoll.model.secret import AuditEntry
    from atoll.model.settings import Setting
    from atoll.model.shapes import (
        AgentBudgetShape,
        AgentEventShape,
        AgentShape,
        ApprovalShape,
        AvailableAgentShape,
        BaseShape,
        BisectShape,
        BrowserSettingsShape,
        BrowserShape,
        CandidateDiffShape,
        CandidateEvidenceShape,
        CandidateShape,
        CapsuleDetailsShape,
        CapsuleShape,
        CapturedShape,
        CheckedLayerShape,
        CheckReportShape,
        CheckResultShape,
        CollectedShape,
        CommitShape,
        ComparisonShape,
        CompletionShape,
        ConnectionShape,
        DaemonLogShape,
        DaemonShape,
        DaemonStatusShape,
        DemoShape,
        EndedRunShape,
        ExcludedShape,
        ExportShape,
        FigureShape,
        FindingShape,
        GraftShape,
        InitShape,
        JudgementShape,
        LayerShape,
        LevelShape,
        LogEntryShape,
        MatrixCellShape,
        MatrixShape,
        ModelUsageShape,
        MomentShape,
        NewCapsuleShape,
        ObservedCheckShape,
        OpenedShape,
        OutcomeShape,
        PatchShape,
        PathShape,
        PausedShape,
        PickedShape,
        ProcessShape,
        PromotionShape,
        PromotionStepShape,
        RacePromotionShape,
        RaceShape,
        RecoveryPointShape,
        RemovalShape,
        RemovedShape,
        RollbackShape,
        RuleShape,
        RunNetworkShape,
        RunShape,
        SecretAuditShape,
        SecretGrantShape,
        SecretShape,
        SentMessageShape,
        SettingShape,
        SnapshotShape,
        SpawnedShape,
        StoppedDaemonShape,
        SummaryShape,
        TranscriptShape,
        TrialShape,
        TrustShape,
        TurnShape,
        UntrustShape,
        VaultShape,
        VerdictShape,
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


def browser_settings(tool: str, settings: dict[str, object]) -> BrowserSettingsShape:
    return {"tool": tool, "settings": settings}


def opened(url: str, *, pid: int | None = None, inside: Run | None = None) -> OpenedShape:
    return {"url": url, "pid": pid, "run": None if inside is None else run(inside)}


def daemon(status: DaemonStatusShape, *, is_running: bool) -> DaemonShape:
    return {"running": is_running, **status}


def no_daemon() -> StoppedDaemonShape:
    return {"running": False}


def daemon_log(line: str) -> DaemonLogShape:
    return {"line": line}


def rule(record: Allowed) -> RuleShape:
    return {"rule": record.rule, "source": record.source, "means": list(record.means)}


def secret(record: SecretStatus) -> SecretShape:
    scope = record.delivery.broker if record.delivery is not None else None
    return {
        "name": record.name,
        "state": record.state,
        "origin": record.origin.text if record.origin is not None else None,
        "form": record.delivery.text if record.delivery is not None else None,
        "hosts": list(scope.hosts) if scope is not None else [],
        "allow": list(scope.allow) if scope is not None else [],
        "deny": list(scope.deny) if scope is not None else [],
        "repository": (scope.repository or None) if scope is not None else None,
        "upstream": (scope.upstream or None) if scope is not None else None,
        "ttl_s": record.ttl_s,
        "created_at": record.created_at,
        "rotated_at": record.rotated_at,
        "used_at": record.used_at,
        "ends_at_once": record.ends_at_once,
        "grants": [secret_grant(one) for one in record.grants],
    }


def secret_grant(record: GrantStatus) -> SecretGrantShape:
    return {
        "capsule": record.capsule,
        "granted_at": record.granted_at,
        "expires_at": record.expires_at,
        "expired": record.is_expired,
        "used_at": record.used_at,
    }


def secret_use(record: AuditEntry) -> SecretAuditShape:
    return {
        "at": record.at,
        "secret": record.secret,
        "capsule": record.capsule,
        "act": record.act,
        "detail": record.detail,
    }


def vault(*, has_passphrase: bool) -> VaultShape:
    return {"passphrase": has_passphrase}


def setting(record: Setting) -> SettingShape:
    return {"key": record.key, "value": record.value, "source": record.source}


def trust(file: ProjectFileText) -> TrustShape:
    return {
        "path": str(file.path),
        "digest": file.digest,
        "claims": [{"key": claim.key, "text": claim.text} for claim in file.claims],
    }


def untrust(*, was_trusted: bool) -> UntrustShape:
    return {"was_trusted": was_trusted}


def init(place: str, text: str, *, is_written: bool) -> InitShape:
    return {"path": place, "text": text, "written": is_written}


def completion(shell: str, script: str) -> CompletionShape:
    return {"shell": shell, "script": script}


def demo(record: Demo, compared: ComparisonShape) -> DemoShape:
    return {
        "comparison": compared,
        "promises": [{"text": one.text, "kept": one.is_kept} for one in record.promises],
        "as_promised": record.is_as_promised,
        "took_s": round(record.took_s, 3),
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


def model_usage(record: ModelUsage) -> ModelUsageShape:
    return {
        "model": record.model,
        "requests": record.requests,
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
        "cached_tokens": record.cached_tokens,
        "cost_usd": record.cost_usd,
    }


def agent_budget(record: AgentBudget) -> AgentBudgetShape:
    return {
        "time_s": record.time_s,
        "turns": record.turns,
        "tokens": record.tokens,
        "cost_usd": record.cost_usd,
    }


def agent(record: AgentStatus) -> AgentShape:
    """An agent as `agents` shows it."""
    task = record.agent.task
    return {
        "capsule": record.capsule,
        "project": record.project,
        "agent": record.agent.adapter,
        "state": str(record.state),
        "reason": record.reason,
        "since": record.since,
        "task": task.prompt,
        "interactive": task.interactive,
        "turns": record.turns,
        "tokens": record.tokens,
        "cost_usd": record.cost_usd,
        "usage": [model_usage(one) for one in record.usage],
        "budget": agent_budget(task.budget),
        "changed_files": None if record.changed is None else record.changed.files,
        "line": record.line,
        "run": None if record.run is None else record.run.label,
    }


def spawned(record: CapsuleRecord, adapter: str, started: Run | None) -> SpawnedShape:
    return {
        "capsule": record.name,
        "agent": adapter,
        "branch": record.branch,
        "run": None if started is None else started.label,
    }


def available_agent(record: AvailableAgent) -> AvailableAgentShape:
    return {
        "name": record.name,
        "title": record.title,
        "program": record.program,
        "version": record.version,
        "login": record.login,
        "usable": record.is_usable,
        "cure": record.cure or None,
    }


def agent_event(record: AgentEvent) -> AgentEventShape:
    return {
        "kind": str(record.kind),
        "text": record.text,
        "tool": record.tool,
        "call": record.call,
        "is_error": record.is_error,
        "at": record.at,
    }


def verdict(record: TurnVerdict) -> VerdictShape:
    return {
        "state": str(record.state),
        "reason": record.reason,
        "at": record.at,
        "tree": record.tree or None,
        "commit": record.commit or None,
        "checks": [
            {
                "command": one.command,
                "passed": one.passed,
                "exit_code": one.exit_code,
                "run": one.run,
                "output": one.output,
            }
            for one in record.checks
        ],
    }


def turn(record: TurnView, events: list[AgentEvent]) -> TurnShape:
    return {
        "number": record.turn.number,
        "prompt": record.turn.prompt,
        "at": record.turn.at,
        "run": record.turn.run or None,
        "running": record.is_running,
        "verdict": None if record.verdict is None else verdict(record.verdict),
        "events": [agent_event(one) for one in events],
    }


def transcript(
    name: str, adapter: str, turns: list[tuple[TurnView, list[AgentEvent]]]
) -> TranscriptShape:
    return {
        "capsule": name,
        "agent": adapter,
        "turns": [turn(view, events) for view, events in turns],
    }


def sent_message(name: str, record: SentMessage | None, budget: AgentBudget) -> SentMessageShape:
    return {
        "capsule": name,
        "turn": None if record is None or record.turn is None else record.turn.number,
        "run": None if record is None or record.run is None else record.run.label,
        "typed": record is not None and record.is_typed,
        "budget": agent_budget(budget),
    }


def figure(record: Figure) -> FigureShape:
    return {
        "name": record.name,
        "value": record.value,
        "unit": record.unit,
        "better": record.better or None,
    }


def observed_checks(
    specs: Sequence[CheckSpec], results: Sequence[CheckResult | None]
) -> list[ObservedCheckShape]:
    return [
        {
            "name": spec.name,
            "status": None if found is None else str(found.status),
            "message": "" if found is None else found.message,
            "took_s": None if found is None else found.took_s,
            "tests_passed": None if found is None or found.tests is None else found.tests.passed,
            "tests_failed": None if found is None or found.tests is None else found.tests.failed,
            "tests_skipped": None if found is None or found.tests is None else found.tests.skipped,
        }
        for spec, found in zip(specs, results, strict=True)
    ]


def candidate_evidence(
    record: CandidateEvidence, specs: Sequence[CheckSpec]
) -> CandidateEvidenceShape:
    one, changes, cross = record.candidate, record.changes, record.cross
    return {
        "name": one.name,
        "position": one.position,
        "state": str(one.state),
        "reason": one.reason,
        "agent": one.spec.agent,
        "model": one.spec.model,
        "graft": list(one.spec.graft),
        "commit": one.commit or None,
        "tree": one.tree or None,
        "same_tree": list(record.twins),
        "checks": observed_checks(specs, record.checks),
        "figures": {name: figure(found) for name, found in record.figures.items()},
        "base_tests": str(record.base_tests.status),
        "crosstests": None if cross is None else {"passed": cross.passed, "ran": cross.ran},
        "files": [
            {
                "path": file.path,
                "status": file.status,
                "added": file.added,
                "deleted": file.deleted,
                "binary": file.is_binary,
            }
            for file in changes.files
        ],
        "lines_added": changes.added,
        "lines_deleted": changes.deleted,
        "changed_tests": list(changes.changed_tests),
        "deleted_tests": changes.tests_gone,
        "deleted_test_files": list(changes.deleted_test_files),
        "skipped_tests": changes.skipped_tests,
        "assertions_removed": changes.assertions_removed,
        "dependencies": list(changes.dependencies),
        "locks": list(changes.locks),
        "risky": list(changes.risky),
        "new_warnings": record.warnings,
        "took_s": record.took_s,
        "tokens": one.tokens,
        "cost_usd": one.cost_usd,
        "judged": record.judged,
        "undecided": record.is_undecided,
        "obstacle": record.obstacle or None,
        "removed": one.is_removed,
    }


def comparison(record: RaceEvidence) -> ComparisonShape:
    race, specs = record.race, record.race.spec.checks
    return {
        "race": race.name,
        "task": race.spec.task,
        "state": str(race.state),
        "created_at": race.created_at,
        "winner": race.winner,
        "rule": race.spec.rule,
        "base": {
            "commit": race.base_commit,
            "tree": record.base_tree,
            "checks": observed_checks(specs, record.base_checks),
            "figures": {name: figure(found) for name, found in record.base_figures.items()},
            "passes": record.matrix.does_base_pass,
        },
        "candidates": [candidate_evidence(one, specs) for one in record.candidates],
        "matrix": matrix(record.matrix),
        "judgement": None if record.judgement is None else judgement(record.judgement),
        "notes": list(record.notes),
    }


def matrix(record: Matrix) -> MatrixShape:
    return {
        "columns": [{"tree": one.tree, "names": list(one.names)} for one in record.columns],
        "rows": [
            {
                "names": list(row.names),
                "files": list(row.files),
                "counts": row.counts,
                "cells": [matrix_cell(cell) for cell in row.cells],
            }
            for row in record.rows
        ],
    }


def matrix_cell(record: Cell) -> MatrixCellShape:
    return {
        "status": str(record.status),
        "tree": record.tree or None,
        "tests_passed": record.passed,
        "tests_failed": record.failed,
        "reason": record.reason,
    }


def judgement(record: Judgement) -> JudgementShape:
    return {
        "command": record.command,
        "at": record.at,
        "ranks": dict(record.ranks),
        "undecided": list(record.undecided),
    }


def candidate_diff(record: BoundedPatch) -> CandidateDiffShape:
    return {"diff": record.text.decode(errors="replace"), "complete": record.is_complete}


def picked(record: Picked, discarded: Sequence[str]) -> PickedShape:
    choice, found = record.choice, record.evidence.judgement
    return {
        "race": record.evidence.race.name,
        "winner": choice.winner,
        "reason": choice.reason,
        "by_hand": record.by_hand,
        "obstacle": record.obstacle or None,
        "rule": choice.rule,
        "runner_up": choice.runner_up,
        "ranking": list(choice.ranking),
        "rejected": [{"name": name, "reason": why} for name, why in choice.rejected.items()],
        "judgement": None if found is None else judgement(found),
        "discarded": list(discarded),
    }


def graft(record: Grafted) -> GraftShape:
    one = record.candidate
    return {
        "race": record.race.name,
        "name": one.name,
        "parts": list(one.spec.graft),
        "branch": record.branch,
        "commit": one.commit,
        "tree": one.tree,
        "checks": observed_checks(record.race.spec.checks, record.checks),
    }


def check_result(record: CheckResult) -> CheckResultShape:
    tests = record.tests
    return {
        "id": record.id or None,
        "check": record.name,
        "command": record.command,
        "digest": record.digest,
        "status": str(record.status),
        "passed": record.passed,
        "known": record.is_known,
        "tree": record.tree or None,
        "commit": record.commit or None,
        "at": record.at,
        "took_s": round(record.took_s, 3),
        "exit_code": record.exit_code,
        "attempts": record.attempts,
        "figures": [figure(one) for one in record.figures],
        "tests": None
        if tests is None
        else {
            "passed": tests.passed,
            "failed": tests.failed,
            "skipped": tests.skipped,
            "names": list(tests.names),
            "failures": list(tests.failures),
        },
        "warnings": record.warnings,
        "message": record.message,
        "output": record.output,
        "log": record.log or None,
    }


def check_report(record: CheckReport) -> CheckReportShape:
    return {
        "capsule": record.capsule,
        "commit": record.commit or None,
        "tree": record.tree or None,
        "here": record.is_here,
        "passed": record.passed,
        "detected": record.is_detected,
        "uncommitted": record.has_uncommitted,
        "checks": [check_result(one) for one in record.results],
    }


def trial(
    name: str, record: TrialReport, output: Captured, refused: list[EgressAttempt]
) -> TrialShape:
    return {
        "capsule": name,
        "kept": record.kept,
        "before": snapshot(record.before),
        "attempt": None if record.attempt is None else snapshot(record.attempt),
        "run": ended_run(record.run, output, refused),
        "checks": None if record.checks is None else check_report(record.checks),
    }


def bisection(name: str, record: BisectReport) -> BisectShape:
    return {
        "capsule": name,
        "check": record.check,
        "state": str(record.state),
        "points": record.points,
        "tried": [
            {
                "snapshot": snapshot(one.point.snapshot),
                "verdict": str(one.verdict),
                "message": one.message,
            }
            for one in record.tried
        ],
        "good": None if record.good is None else snapshot(record.good),
        "bad": None if record.bad is None else snapshot(record.bad),
        "between": [snapshot(one) for one in record.between],
        "runs": [run(one) for one in record.runs],
    }


def race(record: RaceStatus) -> RaceShape:
    one, spec = record.race, record.race.spec
    return {
        "name": one.name,
        "task": spec.task,
        "state": str(one.state),
        "carried_on": record.is_carried_on,
        "good": record.is_good,
        "winner": one.winner,
        "base_ref": spec.base_ref,
        "base_commit": one.base_commit,
        "created_at": one.created_at,
        "ended_at": one.ended_at,
        "check_names": [check.name for check in spec.checks],
        "base_checks": [check_result(result) for result in record.base],
        "candidates": [candidate(found, record) for found in record.candidates],
        "promotion": None if record.promotion is None else race_promotion(record.promotion),
    }


def race_promotion(record: UnattendedEnd) -> RacePromotionShape:
    return {
        "stage": record.stage,
        "winner": record.winner,
        "good": record.is_good,
        "message": record.message,
    }


def candidate(record: CandidateStatus, of: RaceStatus) -> CandidateShape:
    one = record.candidate
    return {
        "name": one.name,
        "position": one.position,
        "state": str(one.state),
        "reason": one.reason,
        "agent": one.spec.agent or None,
        "command": list(one.spec.argv),
        "prompt": one.spec.prompt,
        "model": one.spec.model,
        "variables": one.spec.env,
        "graft": list(one.spec.graft),
        "attempts": one.attempts,
        "run": f"{one.name}.{one.run}" if one.run else None,
        "exit_code": one.exit_code,
        "started_at": one.started_at,
        "ended_at": one.ended_at,
        "took_s": record.took_s,
        "commit": one.commit or None,
        "tree": one.tree or None,
        "changed_files": one.files,
        "added_lines": one.added,
        "removed_lines": one.removed,
        "tokens": one.tokens,
        "cost_usd": one.cost_usd,
        "capsule": record.has_capsule,
        "checks": [check_result(result) for result in record.checks],
        "passed": record.passes(of.race.spec.checks),
    }


def approval(record: Approval) -> ApprovalShape:
    return {
        "capsule": record.capsule,
        "stage": record.stage,
        "tree": record.tree,
        "by": record.by,
        "at": record.at,
    }


def promotion_step(record: PromotionStep) -> PromotionStepShape:
    facts = record.facts
    return {
        "stage": record.stage,
        "act": str(record.act),
        "state": str(record.state),
        "at": record.at,
        "commit": facts.commit or None,
        "tree": facts.tree or None,
        "branch": facts.ref.removeprefix("refs/heads/") or None,
        "old": facts.old or None,
        "new": facts.new or None,
        "way": facts.way or None,
        "place": facts.place or None,
        "command": facts.command or None,
        "exit_code": facts.exit_code,
        "checks": [*facts.checks],
        "accepted": [*facts.kinds],
        "by": facts.by or None,
        "message": facts.message or None,
        "output": facts.output or None,
        "log": facts.log or None,
    }


def promotion(record: PromotionReport) -> PromotionShape:
    spec = record.promotion.spec
    return {
        "id": record.promotion.id,
        "capsule": record.promotion.capsule,
        "state": str(record.promotion.state),
        "to": spec.to,
        "stages": [*record.stages],
        "passed": [*record.passed_stages],
        "commit": spec.commit,
        "tree": spec.tree,
        "base": spec.base_commit,
        "agent": spec.agent or None,
        "created_at": record.promotion.created_at,
        "ended_at": record.promotion.ended_at,
        "reason": spec.reason or None,
        "hint": spec.hint or None,
        "exit_code": spec.exit_code,
        "steps": [promotion_step(step) for step in record.steps],
        "checks": [
            {
                "id": one.id,
                "name": one.name,
                "status": str(one.status),
                "tree": one.tree,
                "at": one.at,
            }
            for one in record.results
        ],
        "approvals": [approval(one) for one in record.approvals],
        "left": [*record.left],
    }
