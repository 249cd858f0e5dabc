"""Durable state: every table, and rows as the records that the rest of Atoll uses.

Every change is one transaction that is on disk before the act that it announces: callers write
first, then act. SQL is used here, in `secret_rows`, `agent_rows` and `database` only.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from atoll.engine.state import descriptions
from atoll.engine.state.agent_rows import AgentRows
from atoll.engine.state.check_rows import CheckRows
from atoll.engine.state.database import Connection, DamagedError
from atoll.engine.state.descriptions import Rows
from atoll.engine.state.evidence_rows import EvidenceRows
from atoll.engine.state.promotion_rows import PromotionRows
from atoll.engine.state.race_rows import RaceRows
from atoll.engine.state.secret_rows import SecretRows
from atoll.model.errors import StateError
from atoll.model.plan import CapsulePlan, Removal
from atoll.model.state import (
    CapsuleRecord,
    CapsuleState,
    CheckoutRecord,
    Event,
    Outcome,
    PartChange,
    ProjectRecord,
    Reason,
    Run,
    RunState,
    Snapshot,
    SnapshotKind,
)

P = ParamSpec("P")
R = TypeVar("R")

Narrowing = tuple[str | None, tuple[str, ...]]
"""The network that a run asked for, and the patterns for what it may write."""

_DESCRIBED = ("parts", "ports", "snapshots", "grants")
"""Tables with a `capsule_id` whose rows are all in a description; of `runs` only the unfinished
ones."""


class PortTakenError(Exception):
    """Another command leased one of the ports first; the caller tries others."""


class Store(SecretRows, AgentRows, CheckRows, RaceRows, EvidenceRows, PromotionRows):
    """The state of one Atoll home, table by table."""

    # Projects

    def remember_project(self, project: ProjectRecord) -> ProjectRecord:
        with self._write() as db:
            db.execute(
                "INSERT INTO projects VALUES (?, ?, ?, ?) ON CONFLICT (git_dir) "
                "DO UPDATE SET name = excluded.name, root = excluded.root",
                (project.id, project.name, project.root, project.git_dir),
            )
        return project

    def find_project(self, git_dir: str) -> ProjectRecord | None:
        rows = self._rows("SELECT * FROM projects WHERE git_dir = ?", git_dir)
        return ProjectRecord(**dict(rows[0])) if rows else None

    def projects(self) -> list[ProjectRecord]:
        return [
            ProjectRecord(**dict(row)) for row in self._rows("SELECT * FROM projects ORDER BY name")
        ]

    def projects_by_age(self) -> list[ProjectRecord]:
        """In the order in which they were added."""
        return [
            ProjectRecord(**dict(row))
            for row in self._rows("SELECT * FROM projects ORDER BY rowid")
        ]

    def project_name(self, project_id: str) -> str:
        return next(p.name for p in self.projects() if p.id == project_id)

    # Capsules

    def lease_capsules(
        self,
        project: ProjectRecord,
        plans: Sequence[tuple[CapsulePlan, dict[str, int]]],
        leases: Callable[[CapsulePlan], Mapping[str, str]],
    ) -> list[CapsuleRecord]:
        """Stores capsules that are about to be made, with their ports and with what `leases`
        returns: the payloads of their parts, by name.
        """
        names = []
        # Upkeep finds layers that no row refers to; other files need a durable row first.
        durable = not all(plan.workspace.is_layered for plan, _ in plans)
        try:
            with self._write(durable=durable) as db:
                for plan, ports in plans:
                    names.append(plan.name)
                    _insert_capsule(db, project, plan, ports, leases(plan))
        except sqlite3.IntegrityError as error:
            if "ports" in str(error):
                raise PortTakenError from error
            raise StateError(f"the capsule `{names[-1]}` already exists") from error
        found = {capsule.name: capsule for capsule in self.capsules(project.id)}
        return [found[name] for name in names]

    def set_ready(self, capsules: Sequence[CapsuleRecord]) -> None:
        with self._write() as db:
            db.executemany(
                "UPDATE capsules SET state = ? WHERE id = ?",
                [(CapsuleState.READY, capsule.id) for capsule in capsules],
            )
        self.describe(capsules, make=True)

    def set_removing(self, capsule: CapsuleRecord, removal: Removal) -> None:
        """Announces a removal. The next command completes it if this one is killed."""
        with self._write() as db:
            db.execute(
                "UPDATE capsules SET state = ?, removal = coalesce(removal, ?) WHERE id = ?",
                (CapsuleState.REMOVING, json.dumps(removal._asdict()), capsule.id),
            )
        self.describe([capsule])

    def cancel_removal(self, capsule: CapsuleRecord) -> None:
        """Withdraws an announcement before anything was removed."""
        with self._write() as db:
            db.execute(
                "UPDATE capsules SET state = ?, removal = NULL WHERE id = ? AND state = ?",
                (CapsuleState.READY, capsule.id, CapsuleState.REMOVING),
            )
        self.describe([capsule])

    def removal(self, capsule: CapsuleRecord) -> Removal:
        """The options of an announced removal; those of the first announcement count."""
        row = self._rows("SELECT removal FROM capsules WHERE id = ?", capsule.id)[0]
        return Removal(**json.loads(row["removal"]))

    def forget_capsule(self, capsule: CapsuleRecord) -> None:
        with self._write() as db:
            db.execute("DELETE FROM capsules WHERE id = ?", (capsule.id,))

    def capsules(self, project_id: str | None = None) -> list[CapsuleRecord]:
        rows = self._rows(
            "SELECT * FROM capsules WHERE coalesce(?, project_id) = project_id ORDER BY id",
            project_id,
        )
        ports: dict[int, list[sqlite3.Row]] = {}
        for row in self._rows("SELECT * FROM ports ORDER BY position, port"):
            ports.setdefault(row["capsule_id"], []).append(row)
        return [_capsule(dict(row), ports.get(row["id"], ())) for row in rows]

    def find_capsule(self, project_id: str, name: str) -> CapsuleRecord | None:
        return next((c for c in self.capsules(project_id) if c.name == name), None)

    def require_capsule(self, project_id: str, name: str) -> CapsuleRecord:
        found = self.find_capsule(project_id, name)
        if found is None:
            raise StateError(f"there is no capsule `{name}`", hint="atoll ls")
        return found

    def capsule(self, capsule_id: int) -> CapsuleRecord | None:
        return next((c for c in self.capsules() if c.id == capsule_id), None)

    def unsettled(self) -> list[CapsuleRecord]:
        """Capsules that a command is creating or removing, or was when it was killed, and those
        that a command uses for itself.
        """
        return [c for c in self.capsules() if c.state is not CapsuleState.READY or c.temporary]

    def parts(self, capsule: CapsuleRecord) -> dict[str, str]:
        """The payloads of its parts as they are now, by name."""
        rows = self._rows(
            "SELECT part, payload FROM parts WHERE capsule_id = ? AND snapshot = 0", capsule.id
        )
        return {row["part"]: row["payload"] for row in rows}

    def part(self, capsule: CapsuleRecord, name: str) -> str:
        """The payload of a part as it is now; empty when the capsule does not have the part."""
        return self.parts(capsule).get(name, "")

    def set_part(self, capsule: CapsuleRecord, name: str, payload: str) -> None:
        """Replaces the payload of a part; an empty one removes it."""
        with self._write() as db:
            _write_part(db, capsule, name, payload)
        self.describe([capsule])

    def set_exported(self, capsule: CapsuleRecord, commits: Sequence[str]) -> None:
        """Stores the commits at which Atoll may have left the capsule's exported branch."""
        with self._write() as db:
            db.execute(
                "UPDATE capsules SET exported = ? WHERE id = ?",
                (json.dumps(list(commits)), capsule.id),
            )
        self.describe([capsule])

    def set_automatic(self, capsule: CapsuleRecord, *, automatic: bool) -> None:
        with self._write() as db:
            db.execute("UPDATE capsules SET automatic = ? WHERE id = ?", (automatic, capsule.id))
        self.describe([capsule])

    # Ports

    def change_ports(
        self,
        capsule: CapsuleRecord,
        leases: Mapping[str, tuple[int, int]],
        release: Collection[str] = (),
    ) -> None:
        """Deletes the leases in `release` and adds new ones, name → (port, number), in one
        transaction. A name that has a lease keeps it.

        Raises PortTakenError when a port is leased already, StateError when the capsule is gone.
        """
        try:
            with self._write() as db:
                db.executemany(
                    "DELETE FROM ports WHERE capsule_id = ? AND name = ?",
                    [(capsule.id, name) for name in release],
                )
                db.executemany(
                    "INSERT INTO ports SELECT ?, ?, ?, ?, coalesce(max(position) + 1, 0) "
                    "FROM ports WHERE capsule_id = ? ON CONFLICT (capsule_id, name) DO NOTHING",
                    [
                        (port, capsule.id, name, number, capsule.id)
                        for name, (port, number) in leases.items()
                    ],
                )
        except sqlite3.IntegrityError as error:
            if "FOREIGN KEY" in str(error):
                raise StateError(f"the capsule `{capsule.name}` has been removed") from error
            raise PortTakenError from error
        self.describe([capsule])

    def leased_ports(self) -> set[int]:
        return {row["port"] for row in self._rows("SELECT port FROM ports")}

    def checkouts(self) -> dict[str, CheckoutRecord]:
        """Project → the capsule that has its canonical ports."""
        return {
            row["project_id"]: CheckoutRecord(row["capsule_id"], tuple(json.loads(row["ports"])))
            for row in self._rows("SELECT * FROM checkouts")
        }

    def set_checkout(
        self, project_id: str, capsule_id: int | None, ports: Collection[int] = ()
    ) -> None:
        """Raises StateError when the capsule was removed."""
        try:
            with self._write() as db:
                db.execute("DELETE FROM checkouts WHERE project_id = ?", (project_id,))
                if capsule_id is not None:
                    db.execute(
                        "INSERT INTO checkouts (project_id, capsule_id, ports) VALUES (?, ?, ?)",
                        (project_id, capsule_id, json.dumps(sorted(ports))),
                    )
        except sqlite3.IntegrityError as error:
            raise StateError("the capsule has been removed", hint="atoll ls") from error

    # Snapshots

    def add_snapshot(
        self,
        capsule: CapsuleRecord,
        changes: Mapping[str, PartChange],
        *,
        message: str,
        kind: SnapshotKind,
        moment: str = "",
        target: int | None = None,
    ) -> Snapshot:
        """Adds a snapshot, and changes the capsule to what it continues with, in one transaction.
        `changes` has the payloads by part; `moment` says how writes were prevented, `target` to
        which snapshot a rollback returns.
        """
        with self._write() as db:
            number = db.execute(
                "SELECT coalesce(max(number), 0) + 1 FROM snapshots WHERE capsule_id = ?",
                (capsule.id,),
            ).fetchone()[0]
            db.execute(
                "INSERT INTO snapshots (capsule_id, number, message, kind, synced, "
                "created_at, moment, target) VALUES (?, ?, ?, ?, 0, ?, ?, ?)",
                (capsule.id, number, message, kind, time.time(), moment, target),
            )
            for name, change in changes.items():
                _write_part(db, capsule, name, change.current)
                _write_part(db, capsule, name, change.snapshot, snapshot=number)
        self.describe([capsule])
        return self.snapshots(capsule)[-1]

    def snapshots(self, capsule: CapsuleRecord | None = None) -> list[Snapshot]:
        """The oldest first."""
        chosen = capsule.id if capsule is not None else None
        parts: dict[tuple[int, int], dict[str, str]] = {}
        for row in self._rows(
            "SELECT * FROM parts WHERE coalesce(?, capsule_id) = capsule_id AND snapshot > 0",
            chosen,
        ):
            key = (row["capsule_id"], row["snapshot"])
            parts.setdefault(key, {})[row["part"]] = row["payload"]
        rows = self._rows(
            "SELECT * FROM snapshots WHERE coalesce(?, capsule_id) = capsule_id "
            "ORDER BY capsule_id, number",
            chosen,
        )
        return [
            _snapshot(dict(row), parts.get((row["capsule_id"], row["number"]), {})) for row in rows
        ]

    def set_synced(self, snapshots: Sequence[Snapshot]) -> None:
        with self._write() as db:
            db.executemany(
                "UPDATE snapshots SET synced = 1 WHERE id = ?", [(s.id,) for s in snapshots]
            )

    # Events, most of which triggers record (see `schema`)

    def add_event(self, capsule: CapsuleRecord, kind: str) -> None:
        """Records a change of a capsule whose state is not in the database."""
        with self._write(durable=False) as db:
            db.execute(
                "INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload) "
                "VALUES (?, ?, ?, ?, ?, ?, '{}')",
                (time.time(), kind, capsule.project_id, capsule.id, capsule.name, capsule.name),
            )

    def events(self, after: int, *, limit: int) -> list[Event]:
        """The next ones after a cursor, which is the id of an event, or 0 for all that are kept.

        Raises StateError when events after the cursor are no longer kept.
        """
        [kept] = self._rows(
            "SELECT coalesce(min(id), 0) AS oldest, coalesce("
            "(SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0) AS newest FROM events"
        )
        oldest, newest = kept["oldest"] or kept["newest"] + 1, kept["newest"]
        if after and not oldest - 1 <= after <= newest:
            raise StateError(
                f"the events after {after} are not kept: there are {oldest} to {newest}",
                hint="read the current state, then follow from the newest event",
            )
        rows = self._rows("SELECT * FROM events WHERE id > ? ORDER BY id LIMIT ?", after, limit)
        return [_event(dict(row)) for row in rows]

    def newest_event(self) -> int:
        rows = self._rows("SELECT seq FROM sqlite_sequence WHERE name = 'events'")
        return int(rows[0]["seq"]) if rows else 0

    def prune_events(self, *, keep: int) -> None:
        """Deletes all but the latest `keep` events."""
        if self._rows("SELECT 1 FROM events LIMIT 1 OFFSET ?", keep):
            with self._write(durable=False) as db:
                db.execute(
                    "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", (keep,)
                )

    # Runs

    def lease_run(  # noqa: PLR0913 - a row, and when it may be written
        self,
        capsule: CapsuleRecord,
        *,
        token: str,
        argv: Sequence[str],
        background: bool,
        tty: bool,
        states: Sequence[CapsuleState],
        network: str | None = None,
        write: Sequence[str] = (),
        is_own: bool = False,
    ) -> Run:
        """Stores a run that is about to start, if the capsule is still in one of `states`.

        A run of Atoll itself, `is_own`, does not count as a restriction.
        """
        with self._write(durable=False) as db:
            row = db.execute("SELECT state FROM capsules WHERE id = ?", (capsule.id,)).fetchone()
            if row is None or CapsuleState(row["state"]) not in states:
                raise StateError(f"the capsule `{capsule.name}` is being created or removed")
            number = db.execute(
                "SELECT coalesce(max(number), 0) + 1 FROM runs WHERE capsule_id = ?", (capsule.id,)
            ).fetchone()[0]
            cursor = db.execute(
                "INSERT INTO runs (capsule_id, number, token, argv, state, background, tty, "
                "directory, created_at, network, write, internal) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    capsule.id, number, token, json.dumps(list(argv)), RunState.STARTING,
                    background, tty, f"{capsule.directory}/runs/{number}", time.time(), network,
                    json.dumps(list(write)), is_own,
                ),
            )  # fmt: skip
            run_id = cursor.lastrowid
            if not is_own and (write or network == "none"):
                self._note_narrowing(db, capsule, (network, tuple(sorted(set(write)))))
        self.describe([capsule])
        return self._select_runs("runs.id = ?", run_id)[0]

    def set_running(self, run: Run) -> None:
        with self._write(durable=False) as db:
            db.execute(
                "UPDATE runs SET state = ? WHERE id = ? AND state = ?",
                (RunState.RUNNING, run.id, RunState.STARTING),
            )

    def set_ended(self, run: Run, outcome: Outcome, *, ended_at: float) -> None:
        with self._write(durable=False) as db:
            db.execute(
                "UPDATE runs SET state = ?, outcome = ?, ended_at = ? WHERE id = ? AND state <> ?",
                (RunState.ENDED, json.dumps(outcome._asdict()), ended_at, run.id, RunState.ENDED),
            )

    def forget_run(self, run: Run) -> None:
        with self._write(durable=False) as db:
            db.execute("DELETE FROM runs WHERE id = ?", (run.id,))

    def runs(self, capsule: CapsuleRecord | None = None) -> list[Run]:
        if capsule is None:
            return self._select_runs("1 = 1")
        return self._select_runs("capsule_id = ?", capsule.id)

    def find_run(self, run_id: int) -> Run | None:
        return next(iter(self._select_runs("runs.id = ?", run_id)), None)

    def find_run_by_token(self, token: str) -> Run | None:
        return next(iter(self._select_runs("token = ?", token)), None)

    def unfinished_runs(self) -> list[Run]:
        return self._select_runs("runs.state <> ?", RunState.ENDED)

    def widening_runs(self, capsule: CapsuleRecord) -> list[Run]:
        """Unfinished runs that asked for a network other than their capsule's."""
        return self._select_runs(
            "capsule_id = ? AND runs.network IS NOT NULL AND runs.state <> ?",
            capsule.id,
            RunState.ENDED,
        )

    def _select_runs(self, condition: str, *values: object) -> list[Run]:
        rows = self._rows(
            "SELECT runs.*, capsules.name AS capsule_name FROM runs "  # noqa: S608 - our own words
            f"JOIN capsules ON capsules.id = capsule_id WHERE {condition} ORDER BY runs.id",
            *values,
        )
        return [_run(dict(row)) for row in rows]

    def narrowings(self, capsule: CapsuleRecord) -> list[Narrowing]:
        """The distinct restrictions of the runs that wrote the files of a capsule."""
        rows = self._rows("SELECT narrowed FROM capsules WHERE id = ?", capsule.id)
        found = json.loads(rows[0]["narrowed"]) if rows else []
        return [(network, tuple(write)) for network, write in found]

    def inherit_narrowings(self, capsule: CapsuleRecord, origin: CapsuleRecord) -> None:
        """Copies the restrictions of `origin` to a fork of it."""
        with self._write() as db:
            for narrowing in self.narrowings(origin):
                self._note_narrowing(db, capsule, narrowing)
        self.describe([capsule])

    def _note_narrowing(self, db: Connection, capsule: CapsuleRecord, narrowing: Narrowing) -> None:
        known = self.narrowings(capsule)
        if narrowing not in known:
            text = json.dumps([*known, narrowing])
            db.execute("UPDATE capsules SET narrowed = ? WHERE id = ?", (text, capsule.id))

    # Network grants: what the owner allows beyond what capsules were made with

    def add_grant(self, capsule: CapsuleRecord, rule: str) -> None:
        with self._write() as db:
            db.execute(
                "INSERT OR IGNORE INTO grants VALUES (?, ?, ?)", (capsule.id, rule, time.time())
            )
        self.describe([capsule])

    def drop_grant(self, capsule: CapsuleRecord, rule: str) -> bool:
        with self._write() as db:
            cursor = db.execute(
                "DELETE FROM grants WHERE capsule_id = ? AND rule = ?", (capsule.id, rule)
            )
        self.describe([capsule])
        self.back_up()
        return cursor.rowcount > 0

    def grants(self, capsule: CapsuleRecord) -> list[str]:
        """The rules of one capsule, without those of its project."""
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
        """The rules of all capsules of a project, present and future."""
        rows = self._rows(
            "SELECT rule FROM project_grants WHERE project_id = ? ORDER BY granted_at", project_id
        )
        return [row["rule"] for row in rows]

    # Trust

    def set_trusted(self, path: str, digest: str) -> None:
        with self._write() as db:
            db.execute("INSERT OR REPLACE INTO trust VALUES (?, ?, ?)", (path, digest, time.time()))

    def trusted_digest(self, path: str) -> str | None:
        rows = self._rows("SELECT digest FROM trust WHERE path = ?", path)
        return rows[0]["digest"] if rows else None

    def forget_trust(self, path: str) -> bool:
        with self._write() as db:
            cursor = db.execute("DELETE FROM trust WHERE path = ?", (path,))
        self.back_up()
        return cursor.rowcount > 0

    def damage(self) -> list[str]:
        """The problems that an integrity check and reading all records find, except in payloads
        (`leases.find_damage`).
        """
        rows = self._rows("PRAGMA integrity_check")
        wrong = [row[0] for row in rows if row[0] != "ok"]
        if wrong:
            return wrong
        try:
            self.capsules(), self.snapshots(), self.runs(), self.projects(), self.checkouts()
        except StateError as error:
            wrong.append(error.message)
        return wrong

    # Descriptions: all rows about a capsule, written beside its files

    def describe(self, capsules: Sequence[CapsuleRecord], *, make: bool = False) -> None:
        """Writes the descriptions of capsules beside their files."""
        for capsule in capsules:
            place = Path(capsule.directory)
            # A damaged record must not cause a write outside of the home.
            rows = self._description(capsule.id) if self._owns(place) else {}
            if rows.get("capsules"):
                descriptions.save(place, rows, make=make)

    def _owns(self, place: Path) -> bool:
        return place.is_absolute() and place.is_relative_to(self.home / "projects")

    def _back_up(self) -> None:
        """Also writes missing descriptions, such as those of capsules of an older Atoll."""
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
        rows = {table: select(table, "capsule_id = ?", capsule_id) for table in _DESCRIBED}
        living = select("runs", "capsule_id = ? AND state <> ?", capsule_id, RunState.ENDED)
        projects = [row for c in capsules for row in select("projects", "id = ?", c["project_id"])]
        return {"projects": projects, "capsules": capsules, **rows, "runs": living}

    def adopt(self, rows: Rows) -> None:
        """Adds a capsule from its description, and replaces what the database has about it.

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
            for table in (*_DESCRIBED, "runs"):
                for row in rows.get(table, []):
                    known = {key: value for key, value in row.items() if key != "id"}
                    _insert(db, table, {**known, "capsule_id": number}, otherwise="IGNORE")

    def add_found_run(
        self,
        capsule: CapsuleRecord,
        number: int,
        *,
        token: str,
        argv: Sequence[str],
        started_at: float,
    ) -> None:
        """Adds a run whose directory was found; its outcome is read from there later."""
        with self._write(durable=False) as db:
            row = {
                "capsule_id": capsule.id, "number": number, "token": token,
                "argv": json.dumps(list(argv)), "state": RunState.RUNNING, "background": 1,
                "tty": 0, "directory": f"{capsule.directory}/runs/{number}",
                "created_at": started_at,
            }  # fmt: skip
            _insert(db, "runs", row, otherwise="IGNORE")


def _insert_capsule(
    db: Connection,
    project: ProjectRecord,
    plan: CapsulePlan,
    ports: dict[str, int],
    leases: Mapping[str, str],
) -> None:
    cursor = db.execute(
        "INSERT INTO capsules (project_id, name, level, state, base_commit, base_ref, "
        "branch, workspace, directory, time_limit_s, created_at, temporary) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            project.id, plan.name, plan.level, CapsuleState.CREATING, plan.base_commit,
            plan.base_ref, plan.workspace.branch, plan.workspace.path, plan.directory,
            plan.time_limit_s, time.time(), plan.temporary,
        ),
    )  # fmt: skip
    db.executemany(
        "INSERT INTO parts VALUES (?, 0, ?, ?)",
        [(cursor.lastrowid, name, payload) for name, payload in leases.items()],
    )
    db.executemany(
        "INSERT INTO ports VALUES (?, ?, ?, ?, ?)",
        [
            (port, cursor.lastrowid, name, plan.numbers.get(name), position)
            for position, (name, port) in enumerate(ports.items())
        ],
    )


def _write_part(
    db: Connection, capsule: CapsuleRecord, name: str, payload: str, *, snapshot: int = 0
) -> None:
    if payload:
        values = (capsule.id, snapshot, name, payload)
        db.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?)", values)
        return
    db.execute(
        "DELETE FROM parts WHERE capsule_id = ? AND snapshot = ? AND part = ?",
        (capsule.id, snapshot, name),
    )


def _insert(
    db: Connection, table: str, row: dict[str, Any], *, otherwise: str = "ABORT"
) -> int | None:
    """Ignores columns that the table does not have; missing ones get their defaults."""
    known = [found["name"] for found in db.execute(f"PRAGMA table_info({table})")]
    columns = [name for name in known if name in row]
    marks = ", ".join("?" for _ in columns)
    cursor = db.execute(
        f"INSERT OR {otherwise} INTO {table} ({', '.join(columns)}) VALUES ({marks})",  # noqa: S608
        [row[name] for name in columns],
    )
    return cursor.lastrowid


def _from_row(function: Callable[P, R]) -> Callable[P, R]:
    """Raises DamagedError for a row with content that Atoll does not write."""

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedError(f"the database holds a damaged record: {error}") from error

    return checked


@_from_row
def _capsule(row: Mapping[str, Any], ports: Sequence[Any]) -> CapsuleRecord:
    """`ports` are the rows of its port leases, in order."""
    given = ("removal", "state", "exported", "automatic", "narrowed")
    fields = {key: value for key, value in dict(row).items() if key not in given}
    return CapsuleRecord(
        **fields,
        state=CapsuleState(row["state"]),
        ports={port["name"]: port["port"] for port in ports},
        numbers={port["name"]: port["number"] for port in ports if port["number"] is not None},
        exported=tuple(json.loads(row["exported"])),
        automatic=bool(row["automatic"]),
    )


@_from_row
def _snapshot(row: Mapping[str, Any], parts: dict[str, str]) -> Snapshot:
    fields = dict(row)
    fields["kind"], fields["synced"] = SnapshotKind(fields["kind"]), bool(fields["synced"])
    return Snapshot(**fields, parts=parts)


@_from_row
def _run(row: Mapping[str, Any]) -> Run:
    fields = dict(row)
    fields["argv"] = tuple(json.loads(fields["argv"]))
    fields["write"] = tuple(json.loads(fields["write"]))
    fields["state"] = RunState(fields["state"])
    for flag in ("background", "tty", "internal"):
        fields[flag] = bool(fields[flag])
    if fields["outcome"] is not None:
        payload: dict[str, Any] = json.loads(fields["outcome"])
        payload["reason"] = Reason(payload["reason"])
        fields["outcome"] = Outcome(**payload)
    return Run(**fields)


@_from_row
def _event(row: Mapping[str, Any]) -> Event:
    return Event(**{**row, "payload": json.loads(row["payload"])})
