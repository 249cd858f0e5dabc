"""Fills in the shapes of what belongs to no single capsule."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.engine.capsule.disk_use import DiskUse
    from atoll.engine.capsule.reaper import Collected
    from atoll.engine.history.layers import Checked, Layer, LayerSummary
    from atoll.engine.network.rules import Allowed
    from atoll.engine.project.levels import Level
    from atoll.engine.project.settings import ProjectFileText
    from atoll.engine.secret.listing import GrantStatus, SecretStatus
    from atoll.engine.verify.wall_test import WallFinding, WallReport
    from atoll.model.secret import AuditEntry
    from atoll.model.settings import Setting
    from atoll.model.shapes import (
        BaseShape,
        CheckedLayerShape,
        CollectedShape,
        CompletionShape,
        DaemonLogShape,
        DaemonShape,
        DaemonStatusShape,
        FindingShape,
        InitShape,
        LayerShape,
        LevelShape,
        RuleShape,
        SecretAuditShape,
        SecretGrantShape,
        SecretShape,
        SettingShape,
        StoppedDaemonShape,
        TrustShape,
        UntrustShape,
        VaultShape,
        WallFindingShape,
        WallReportShape,
    )
    from atoll.model.state import (
        Finding,
        Problem,
    )


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
