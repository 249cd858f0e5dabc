"""What the owner lets capsules reach beyond what they were made with: one, or all of a project."""

from __future__ import annotations

import time

from atoll.engine.run_store import RunStore
from atoll.model.state import Capsule


class GrantStore(RunStore):
    def add_grant(self, capsule: Capsule, rule: str) -> None:
        with self._write() as db:
            db.execute(
                "INSERT OR IGNORE INTO grants VALUES (?, ?, ?)", (capsule.id, rule, time.time())
            )
        self.describe([capsule])

    def drop_grant(self, capsule: Capsule, rule: str) -> bool:
        with self._write() as db:
            cursor = db.execute(
                "DELETE FROM grants WHERE capsule_id = ? AND rule = ?", (capsule.id, rule)
            )
        self.describe([capsule])
        self.back_up()
        return cursor.rowcount > 0

    def grants(self, capsule: Capsule) -> list[str]:
        """Of one capsule, without those of its project."""
        rows = self._rows(
            "SELECT rule FROM grants WHERE capsule_id = ? ORDER BY granted_at", capsule.id
        )
        return [row["rule"] for row in rows]

    def add_project_grant(self, project_id: str, rule: str) -> None:
        with self._write() as db:
            db.execute(
                "INSERT OR IGNORE INTO project_grants VALUES (?, ?, ?)",
                (project_id, rule, time.time()),
            )
        self.back_up()

    def drop_project_grant(self, project_id: str, rule: str) -> bool:
        with self._write() as db:
            cursor = db.execute(
                "DELETE FROM project_grants WHERE project_id = ? AND rule = ?", (project_id, rule)
            )
        self.back_up()
        return cursor.rowcount > 0

    def project_grants(self, project_id: str) -> list[str]:
        """Of every capsule of a project, also of those that are made later."""
        rows = self._rows(
            "SELECT rule FROM project_grants WHERE project_id = ? ORDER BY granted_at", project_id
        )
        return [row["rule"] for row in rows]
