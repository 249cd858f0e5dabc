"""The table of what was observed of a race besides its checks: its matrix and its judgement."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from atoll.engine.state.database import DamagedError, Database


class EvidenceRows(Database):
    """Part of the store."""

    def save_evidence(self, race_id: int, kind: str, payload: Mapping[str, Any]) -> None:
        """Replaces what is stored of this kind."""
        with self._write() as db:
            db.execute(
                "INSERT INTO race_evidence VALUES (?, ?, ?) ON CONFLICT (race_id, kind) "
                "DO UPDATE SET payload = excluded.payload",
                (race_id, kind, json.dumps(payload)),
            )

    def find_evidence(self, race_id: int, kind: str) -> dict[str, Any] | None:
        rows = self._rows(
            "SELECT payload FROM race_evidence WHERE race_id = ? AND kind = ?", race_id, kind
        )
        if not rows:
            return None
        try:
            found: dict[str, Any] = json.loads(rows[0]["payload"])
        except ValueError as error:
            raise DamagedError(f"the database holds a damaged record: {error}") from error
        return found
