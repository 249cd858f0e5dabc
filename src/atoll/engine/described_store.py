"""Capsules as descriptions: all rows about one, out of the database and into it again."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atoll.engine import descriptions
from atoll.engine.database import Connection, Database
from atoll.engine.descriptions import Rows
from atoll.model.state import Capsule, CapsuleState, RunState

_TABLES = ("leases", "ports", "snapshots", "grants")
"""With the capsule's id in `capsule_id`; runs are added while they are not ended."""


class DescribedStore(Database):
    def describe(self, capsules: Sequence[Capsule], *, make: bool = False) -> None:
        """Writes down beside the files of capsules what the database knows about them."""
        for capsule in capsules:
            place = Path(capsule.directory)
            # Nothing is written outside of the home, whatever a record says.
            rows = self._description(capsule.id) if self._owns(place) else {}
            if rows.get("capsules"):
                descriptions.save(place, rows, make=make)

    def _owns(self, place: Path) -> bool:
        return place.is_absolute() and place.is_relative_to(self.home / "projects")

    def _back_up(self) -> None:
        """Also describes capsules that have no description, such as those of an older Atoll."""
        super()._back_up()
        ready = self._rows("SELECT * FROM capsules WHERE state = ?", CapsuleState.READY)
        for row in ready:
            place = Path(row["directory"])
            if (
                self._owns(place)
                and place.is_dir()
                and not os.path.lexists(place / descriptions.NAME)
            ):
                descriptions.save(place, self._description(row["id"]))

    def _description(self, capsule_id: int) -> Rows:
        def select(table: str, condition: str, *values: object) -> list[dict[str, Any]]:
            query = f"SELECT * FROM {table} WHERE {condition}"  # noqa: S608 - our own words
            return [dict(row) for row in self._rows(query, *values)]

        capsules = select("capsules", "id = ?", capsule_id)
        rows = {table: select(table, "capsule_id = ?", capsule_id) for table in _TABLES}
        living = select("runs", "capsule_id = ? AND state <> ?", capsule_id, RunState.ENDED)
        projects = [row for c in capsules for row in select("projects", "id = ?", c["project_id"])]
        return {"projects": projects, "capsules": capsules, **rows, "runs": living}

    def adopt(self, rows: Rows) -> None:
        """Puts a described capsule into the database, in the place of what that says about it.

        Raises StateError for a description that does not fit, and then changes nothing.
        """
        [capsule] = rows["capsules"]
        with self._write() as db:
            _insert(db, "projects", rows["projects"][0], otherwise="IGNORE")
            db.execute(
                "DELETE FROM capsules WHERE project_id = ? AND name = ?",
                (capsule["project_id"], capsule["name"]),
            )
            is_taken = db.execute("SELECT 1 FROM capsules WHERE id = ?", (capsule["id"],))
            if is_taken.fetchone() is not None:
                del capsule["id"]
            number = _insert(db, "capsules", capsule)
            for table in (*_TABLES, "runs"):
                for row in rows.get(table, []):
                    known = {key: value for key, value in row.items() if key != "id"}
                    _insert(db, table, {**known, "capsule_id": number}, otherwise="IGNORE")

    def add_found_run(
        self, capsule: Capsule, number: int, *, token: str, argv: Sequence[str], started_at: float
    ) -> None:
        """A run whose directory was found: its end is read from there by whoever asks next."""
        with self._write(durable=False) as db:
            row = {
                "capsule_id": capsule.id, "number": number, "token": token,
                "argv": json.dumps(list(argv)), "state": RunState.RUNNING, "background": 1,
                "tty": 0, "directory": f"{capsule.directory}/runs/{number}",
                "created_at": started_at,
            }  # fmt: skip
            _insert(db, "runs", row, otherwise="IGNORE")


def _insert(
    db: Connection, table: str, row: dict[str, Any], *, otherwise: str = "ABORT"
) -> int | None:
    """Columns that this version does not know are left out; those that are missing get defaults."""
    known = [found["name"] for found in db.execute(f"PRAGMA table_info({table})")]
    columns = [name for name in known if name in row]
    marks = ", ".join("?" for _ in columns)
    cursor = db.execute(
        f"INSERT OR {otherwise} INTO {table} ({', '.join(columns)}) VALUES ({marks})",  # noqa: S608
        [row[name] for name in columns],
    )
    return cursor.lastrowid
