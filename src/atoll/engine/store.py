"""Durable state: the only SQL.

Every change is one transaction that is on disk before the act that it announces. Nothing here
acts: whoever calls writes down first, then does.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Mapping, Sequence

from atoll.engine.grant_store import GrantStore
from atoll.engine.rows import capsule_of, lease_of, snapshot_of
from atoll.model.errors import StateError
from atoll.model.plan import CapsulePlan, Lease, Removal, WorkspacePlan
from atoll.model.state import (
    Capsule,
    CapsuleState,
    Checkout,
    Project,
    Snapshot,
)


class Store(GrantStore):
    """What an Atoll home knows, table by table."""

    # Projects

    def remember_project(self, project: Project) -> Project:
        with self._write() as db:
            db.execute(
                "INSERT INTO projects VALUES (?, ?, ?, ?) ON CONFLICT (git_dir) "
                "DO UPDATE SET name = excluded.name, root = excluded.root",
                (project.id, project.name, project.root, project.git_dir),
            )
        return project

    def find_project(self, git_dir: str) -> Project | None:
        rows = self._rows("SELECT * FROM projects WHERE git_dir = ?", git_dir)
        return Project(**dict(rows[0])) if rows else None

    def projects(self) -> list[Project]:
        return [Project(**dict(row)) for row in self._rows("SELECT * FROM projects ORDER BY name")]

    def projects_by_age(self) -> list[Project]:
        """The one that was known first comes first."""
        return [Project(**dict(row)) for row in self._rows("SELECT * FROM projects ORDER BY rowid")]

    def project_name(self, project_id: str) -> str:
        return next(p.name for p in self.projects() if p.id == project_id)

    # Capsules

    def lease_capsules(
        self, project: Project, plans: Sequence[tuple[CapsulePlan, dict[str, int]]]
    ) -> list[Capsule]:
        """Writes down capsules that are about to be made, with all that they will hold."""
        names = []
        # Layers that no row names are collected; what is made elsewhere must be known before.
        durable = not all(plan.workspace.pool for plan, _ in plans)
        try:
            with self._write(durable=durable) as db:
                for plan, ports in plans:
                    names.append(plan.name)
                    _insert_capsule(db, project, plan, ports)
        except sqlite3.IntegrityError as error:
            if "ports" in str(error):
                raise PortTakenError from error
            raise StateError(f"there is a capsule `{names[-1]}` already") from error
        found = {capsule.name: capsule for capsule in self.capsules(project.id)}
        return [found[name] for name in names]

    def set_ready(self, capsules: Sequence[Capsule]) -> None:
        with self._write() as db:
            db.executemany(
                "UPDATE capsules SET state = ? WHERE id = ?",
                [(CapsuleState.READY, capsule.id) for capsule in capsules],
            )
        self.describe(capsules, make=True)

    def set_removing(self, capsule: Capsule, removal: Removal) -> None:
        """Announces a removal. From here on it only goes forward, by whichever command is next."""
        with self._write() as db:
            db.execute(
                "UPDATE capsules SET state = ?, removal = coalesce(removal, ?) WHERE id = ?",
                (CapsuleState.REMOVING, json.dumps(removal._asdict()), capsule.id),
            )
        self.describe([capsule])

    def cancel_removal(self, capsule: Capsule) -> None:
        """Takes an announcement back of which nothing was carried out."""
        with self._write() as db:
            db.execute(
                "UPDATE capsules SET state = ?, removal = NULL WHERE id = ? AND state = ?",
                (CapsuleState.READY, capsule.id, CapsuleState.REMOVING),
            )
        self.describe([capsule])

    def removal(self, capsule: Capsule) -> Removal:
        """How an announced removal was meant; the first announcement counts."""
        row = self._rows("SELECT removal FROM capsules WHERE id = ?", capsule.id)[0]
        return Removal(**json.loads(row["removal"]))

    def forget_capsule(self, capsule: Capsule) -> None:
        with self._write() as db:
            db.execute("DELETE FROM capsules WHERE id = ?", (capsule.id,))

    def capsules(self, project_id: str | None = None) -> list[Capsule]:
        rows = self._rows(
            "SELECT * FROM capsules WHERE coalesce(?, project_id) = project_id ORDER BY id",
            project_id,
        )
        ports: dict[int, list[sqlite3.Row]] = {}
        for row in self._rows("SELECT * FROM ports ORDER BY position, port"):
            ports.setdefault(row["capsule_id"], []).append(row)
        return [capsule_of(dict(row), ports.get(row["id"], ())) for row in rows]

    def find_capsule(self, project_id: str, name: str) -> Capsule | None:
        return next((c for c in self.capsules(project_id) if c.name == name), None)

    def require_capsule(self, project_id: str, name: str) -> Capsule:
        found = self.find_capsule(project_id, name)
        if found is None:
            raise StateError(f"there is no capsule `{name}`", hint="atoll ls")
        return found

    def capsule(self, capsule_id: int) -> Capsule | None:
        return next((c for c in self.capsules() if c.id == capsule_id), None)

    def unsettled(self) -> list[Capsule]:
        """Capsules in a state that only lasts while a command works on them."""
        return [c for c in self.capsules() if c.state is not CapsuleState.READY]

    def leases(self, capsule: Capsule) -> list[Lease]:
        rows = self._rows(
            "SELECT kind, payload FROM leases WHERE capsule_id = ? ORDER BY position", capsule.id
        )
        return [lease_of(dict(row)) for row in rows]

    def set_plan(self, capsule: Capsule, plan: WorkspacePlan) -> None:
        """Replaces what the capsule's workspace is made of."""
        with self._write() as db:
            _update_plan(db, capsule, plan)
        self.describe([capsule])

    def set_exported(self, capsule: Capsule, commits: Sequence[str]) -> None:
        """Writes down where the capsule's branch may stand in the owner's repository."""
        with self._write() as db:
            db.execute(
                "UPDATE capsules SET exported = ? WHERE id = ?",
                (json.dumps(list(commits)), capsule.id),
            )
        self.describe([capsule])

    def set_automatic(self, capsule: Capsule, *, automatic: bool) -> None:
        with self._write() as db:
            db.execute("UPDATE capsules SET automatic = ? WHERE id = ?", (automatic, capsule.id))
        self.describe([capsule])

    def set_browser(self, capsule: Capsule, profile: str) -> None:
        """Says which directory is the capsule's browser profile from now on."""
        with self._write() as db:
            db.execute("UPDATE capsules SET browser = ? WHERE id = ?", (profile, capsule.id))
        self.describe([capsule])

    # Ports

    def change_ports(
        self, capsule: Capsule, leases: Mapping[str, tuple[int, int]], release: Collection[str] = ()
    ) -> None:
        """Gives up the leases in `release` and adds new ones, name → (port, number), in one
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

    def checkouts(self) -> dict[str, Checkout]:
        """Project → the capsule that has its canonical ports."""
        return {
            row["project_id"]: Checkout(row["capsule_id"], tuple(json.loads(row["ports"])))
            for row in self._rows("SELECT * FROM checkouts")
        }

    def set_checkout(
        self, project_id: str, capsule_id: int | None, ports: Collection[int] = ()
    ) -> None:
        """Raises StateError when the capsule is gone."""
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

    def add_snapshot(  # noqa: PLR0913 - a row
        self,
        capsule: Capsule,
        layers: Sequence[str],
        plan: WorkspacePlan,
        *,
        message: str,
        automatic: bool,
        browser: tuple[str, str] = ("", ""),
        moment: str = "",
    ) -> Snapshot:
        """Writes down a moment, and how the workspace goes on from it, as one; `browser` names the
        profile of that moment, and the one that goes on, `moment` how it was held.
        """
        with self._write() as db:
            number = db.execute(
                "SELECT coalesce(max(number), 0) + 1 FROM snapshots WHERE capsule_id = ?",
                (capsule.id,),
            ).fetchone()[0]
            db.execute(
                "INSERT INTO snapshots (capsule_id, number, message, layers, automatic, synced, "
                "created_at, browser, moment) VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?)",
                (
                    capsule.id, number, message, json.dumps(list(layers)), automatic, time.time(),
                    browser[0], moment,
                ),
            )  # fmt: skip
            db.execute("UPDATE capsules SET browser = ? WHERE id = ?", (browser[1], capsule.id))
            _update_plan(db, capsule, plan)
        self.describe([capsule])
        return self.snapshots(capsule)[-1]

    def snapshots(self, capsule: Capsule | None = None) -> list[Snapshot]:
        """The oldest first."""
        rows = self._rows(
            "SELECT * FROM snapshots WHERE coalesce(?, capsule_id) = capsule_id "
            "ORDER BY capsule_id, number",
            capsule.id if capsule is not None else None,
        )
        return [snapshot_of(dict(row)) for row in rows]

    def set_synced(self, snapshots: Sequence[Snapshot]) -> None:
        with self._write() as db:
            db.executemany(
                "UPDATE snapshots SET synced = 1 WHERE id = ?", [(s.id,) for s in snapshots]
            )

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
        """What SQLite's own check and a reading of all records find wrong; empty if nothing."""
        rows = self._rows("PRAGMA integrity_check")
        wrong = [row[0] for row in rows if row[0] != "ok"]
        if wrong:
            return wrong
        try:
            for capsule in self.capsules():
                self.leases(capsule)
            self.snapshots(), self.runs(), self.projects(), self.checkouts()
        except StateError as error:
            wrong.append(error.message)
        return wrong


class PortTakenError(Exception):
    """Another command leased one of the ports first; the caller looks for others."""


def _insert_capsule(
    db: sqlite3.Connection, project: Project, plan: CapsulePlan, ports: dict[str, int]
) -> None:
    cursor = db.execute(
        "INSERT INTO capsules (project_id, name, level, state, base_commit, base_ref, "
        "branch, workspace, directory, time_limit_s, created_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            project.id, plan.name, plan.level, CapsuleState.CREATING, plan.base_commit,
            plan.base_ref, plan.workspace.branch, plan.workspace.path, plan.directory,
            plan.time_limit_s, time.time(),
        ),
    )  # fmt: skip
    db.executemany(
        "INSERT INTO leases VALUES (?, ?, ?, ?)",
        [
            (cursor.lastrowid, position, lease.kind, json.dumps(lease.payload()))
            for position, lease in enumerate(plan.leases())
        ],
    )
    db.executemany(
        "INSERT INTO ports VALUES (?, ?, ?, ?, ?)",
        [
            (port, cursor.lastrowid, name, plan.numbers.get(name), position)
            for position, (name, port) in enumerate(ports.items())
        ],
    )


def _update_plan(db: sqlite3.Connection, capsule: Capsule, plan: WorkspacePlan) -> None:
    lease = Lease(kind="workspace", plan=plan)
    db.execute(
        "UPDATE leases SET payload = ? WHERE capsule_id = ? AND kind = ?",
        (json.dumps(lease.payload()), capsule.id, lease.kind),
    )
