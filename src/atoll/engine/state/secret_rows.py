"""The tables of secrets: metadata, grants and the audit. Values are in the vault."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from atoll.engine.state.database import DamagedError, Database
from atoll.model.secret import (
    AuditEntry,
    BrokerScope,
    Delivery,
    DeliveryKind,
    GrantRecord,
    OriginKind,
    SecretOrigin,
    SecretRecord,
)

USES_KEPT = 10_000
"""Lines of the audit about uses, per project."""
_USES = ("used", "refused")


class SecretRows(Database):
    """Part of the store."""

    def save_secret(
        self,
        project_id: str,
        name: str,
        origin: SecretOrigin,
        delivery: Delivery,
        ttl_s: float | None = None,
        *,
        revision: str = "",
    ) -> SecretRecord:
        """Adds a secret, or replaces the metadata of the one with this name; grants stay."""
        with self._write() as db:
            db.execute(
                "INSERT INTO secrets "
                "(project_id, name, origin, delivery, ttl_s, created_at, revision) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (project_id, name) DO UPDATE SET "
                "origin = excluded.origin, delivery = excluded.delivery, ttl_s = excluded.ttl_s, "
                "rotated_at = excluded.created_at, revision = excluded.revision",
                (
                    project_id, name, json.dumps(origin._asdict()), json.dumps(_encode(delivery)),
                    ttl_s, time.time(), revision,
                ),
            )  # fmt: skip
        found = self.find_secret(project_id, name)
        assert found is not None  # noqa: S101 - just written
        return found

    def set_rotated(self, secret: SecretRecord) -> None:
        with self._write() as db:
            db.execute("UPDATE secrets SET rotated_at = ? WHERE id = ?", (time.time(), secret.id))

    def forget_secret(self, secret: SecretRecord) -> None:
        """Removes it with its grants."""
        with self._write() as db:
            db.execute("DELETE FROM secrets WHERE id = ?", (secret.id,))

    def secrets(self, project_id: str) -> list[SecretRecord]:
        rows = self._rows("SELECT * FROM secrets WHERE project_id = ? ORDER BY name", project_id)
        return [_secret(dict(row)) for row in rows]

    def find_secret(self, project_id: str, name: str) -> SecretRecord | None:
        return next((s for s in self.secrets(project_id) if s.name == name), None)

    def add_secret_grant(
        self, secret: SecretRecord, capsule_id: int, placeholder: str, expires_at: float | None
    ) -> None:
        """Grants again what was granted before: the placeholder stays, the time starts anew."""
        with self._write() as db:
            db.execute(
                "INSERT INTO secret_grants VALUES (?, ?, ?, ?, ?, NULL) "
                "ON CONFLICT (secret_id, capsule_id) DO UPDATE SET "
                "granted_at = excluded.granted_at, expires_at = excluded.expires_at",
                (secret.id, capsule_id, placeholder, time.time(), expires_at),
            )

    def drop_secret_grant(self, secret: SecretRecord, capsule_id: int) -> bool:
        """Returns whether there was one."""
        with self._write() as db:
            cursor = db.execute(
                "DELETE FROM secret_grants WHERE secret_id = ? AND capsule_id = ?",
                (secret.id, capsule_id),
            )
            return cursor.rowcount > 0

    def drop_secret_grants(self) -> int:
        """Drops all grants of all secrets; returns their number."""
        with self._write() as db:
            return db.execute("DELETE FROM secret_grants").rowcount

    def secret_grants(self, capsule_id: int) -> list[GrantRecord]:
        """The grants of a capsule, by name of the secret; expired ones too."""
        return self._secret_grants("g.capsule_id = ?", capsule_id)

    def grants_of_secret(self, secret: SecretRecord) -> list[GrantRecord]:
        return self._secret_grants("g.secret_id = ?", secret.id)

    def _secret_grants(self, condition: str, value: int) -> list[GrantRecord]:
        rows = self._rows(
            "SELECT s.*, g.capsule_id, g.placeholder, g.granted_at, g.expires_at, g.used_at "  # noqa: S608 - our own words
            "FROM secret_grants g JOIN secrets s ON s.id = g.secret_id "
            f"WHERE {condition} ORDER BY s.name, g.capsule_id",
            value,
        )
        return [_grant(dict(row)) for row in rows]

    def set_secret_used(self, grant: GrantRecord) -> None:
        with self._write(durable=False) as db:
            db.execute(
                "UPDATE secret_grants SET used_at = ? WHERE secret_id = ? AND capsule_id = ?",
                (time.time(), grant.secret.id, grant.capsule_id),
            )

    def add_audit(self, project_id: str, entry: AuditEntry) -> None:
        """Of uses and refusals, the latest are kept; of other acts, all."""
        is_use = entry.act in _USES
        with self._write(durable=not is_use) as db:
            db.execute(
                "INSERT INTO secret_audit (at, project_id, secret, capsule, act, detail) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (entry.at, project_id, entry.secret, entry.capsule, entry.act, entry.detail),
            )
            if is_use:
                db.execute(
                    "DELETE FROM secret_audit WHERE project_id = :project AND act IN (:a, :b) "
                    "AND id <= (SELECT id FROM secret_audit WHERE project_id = :project "
                    "AND act IN (:a, :b) ORDER BY id DESC LIMIT 1 OFFSET :kept)",
                    {"project": project_id, "a": _USES[0], "b": _USES[1], "kept": USES_KEPT},
                )

    def audit(self, project_id: str, name: str | None = None) -> list[AuditEntry]:
        """The oldest first; of one secret, or of all."""
        rows = self._rows(
            "SELECT at, secret, capsule, act, detail FROM secret_audit "
            "WHERE project_id = ? AND coalesce(?, secret) = secret ORDER BY id",
            project_id,
            name,
        )
        return [AuditEntry(**dict(row)) for row in rows]


def _encode(delivery: Delivery) -> dict[str, object]:
    broker = None if delivery.broker is None else delivery.broker._asdict()
    return {**delivery._asdict(), "broker": broker}


def _secret(row: Mapping[str, Any]) -> SecretRecord:
    try:
        return _parse(row)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"the database holds a damaged secret: {error}") from error


def _parse(row: Mapping[str, Any]) -> SecretRecord:
    origin, delivery = json.loads(row["origin"]), json.loads(row["delivery"])
    scope = delivery["broker"]
    if scope is not None:
        lists = {key: tuple(scope[key]) for key in ("hosts", "allow", "deny")}
        scope = BrokerScope(**{**scope, **lists})
    return SecretRecord(
        **{
            **row,
            "origin": SecretOrigin(OriginKind(origin["kind"]), origin["of"], origin["detail"]),
            "delivery": Delivery(DeliveryKind(delivery["kind"]), delivery["path"], scope),
        }
    )


def _grant(row: Mapping[str, Any]) -> GrantRecord:
    own = ("capsule_id", "placeholder", "granted_at", "expires_at", "used_at")
    secret = _secret({key: value for key, value in row.items() if key not in own})
    return GrantRecord(secret, **{key: row[key] for key in own})
