"""The table of check results, by project and tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll.engine.state.database import DamagedError, Database
from atoll.model.check import CheckResult, parse_result


class CheckRows(Database):
    """Part of the store."""

    def add_check_result(self, result: CheckResult) -> CheckResult:
        """Returns it with its id."""
        with self._write() as db:
            cursor = db.execute(
                "INSERT INTO check_results (project_id, tree, name, digest, status, at, payload) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (result.project_id, result.tree, result.name, result.digest, result.status,
                 result.at, result.encode()),
            )  # fmt: skip
            number = cursor.lastrowid
        return result._replace(id=number or 0)

    def find_check_result(self, project_id: str, tree: str, digest: str) -> CheckResult | None:
        """The latest result of a check, named by the digest of its definition, on a tree."""
        rows = self._rows(
            "SELECT * FROM check_results WHERE project_id = ? AND tree = ? AND digest = ? "
            "ORDER BY id DESC LIMIT 1",
            project_id, tree, digest,
        )  # fmt: skip
        return _result(dict(rows[0])) if rows else None

    def check_result(self, result_id: int) -> CheckResult | None:
        rows = self._rows("SELECT * FROM check_results WHERE id = ?", result_id)
        return _result(dict(rows[0])) if rows else None

    def check_results(self, project_id: str, tree: str) -> list[CheckResult]:
        """All results on a tree, the oldest first."""
        rows = self._rows(
            "SELECT * FROM check_results WHERE project_id = ? AND tree = ? ORDER BY id",
            project_id, tree,
        )  # fmt: skip
        return [_result(dict(row)) for row in rows]

    def check_logs(self, project_id: str) -> set[str]:
        """The paths of the logs that results name."""
        rows = self._rows(
            "SELECT json_extract(payload, '$.log') AS log FROM check_results WHERE project_id = ?",
            project_id,
        )
        return {row["log"] for row in rows if row["log"]}


def _result(row: Mapping[str, Any]) -> CheckResult:
    columns = {key: value for key, value in row.items() if key != "payload"}
    try:
        return parse_result(columns, row["payload"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"the database holds a damaged record: {error}") from error
