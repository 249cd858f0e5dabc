"""The runs of capsules in the store."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from atoll.engine.database import Connection
from atoll.engine.described_store import DescribedStore
from atoll.engine.rows import run_of
from atoll.model.errors import StateError
from atoll.model.state import Capsule, CapsuleState, Outcome, Run, RunState

Narrowing = tuple[str | None, tuple[str, ...]]
"""The network that a run asked for, and the patterns for what it may write."""


class RunStore(DescribedStore):
    def lease_run(  # noqa: PLR0913 - a row, and when it may be written
        self,
        capsule: Capsule,
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
        """Writes down a run that is about to start, if the capsule is still in one of `states`.

        One of Atoll's `is_own` is as narrow as others before it, and does not count itself.
        """
        with self._write(durable=False) as db:
            row = db.execute("SELECT state FROM capsules WHERE id = ?", (capsule.id,)).fetchone()
            if row is None or CapsuleState(row["state"]) not in states:
                raise StateError(f"the capsule `{capsule.name}` is being made or removed")
            number = db.execute(
                "SELECT coalesce(max(number), 0) + 1 FROM runs WHERE capsule_id = ?", (capsule.id,)
            ).fetchone()[0]
            cursor = db.execute(
                "INSERT INTO runs (capsule_id, number, token, argv, state, background, tty, "
                "directory, created_at, network, write) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    capsule.id, number, token, json.dumps(list(argv)), RunState.STARTING,
                    background, tty, f"{capsule.directory}/runs/{number}", time.time(), network,
                    json.dumps(list(write)),
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

    def runs(self, capsule: Capsule | None = None) -> list[Run]:
        if capsule is None:
            return self._select_runs("1 = 1")
        return self._select_runs("capsule_id = ?", capsule.id)

    def find_run(self, run_id: int) -> Run | None:
        return next(iter(self._select_runs("runs.id = ?", run_id)), None)

    def unfinished_runs(self) -> list[Run]:
        return self._select_runs("runs.state <> ?", RunState.ENDED)

    def widening_runs(self, capsule: Capsule) -> list[Run]:
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
        return [run_of(dict(row)) for row in rows]

    def narrowings(self, capsule: Capsule) -> list[Narrowing]:
        """How the runs were narrowed that the files of a capsule come from, each way once."""
        rows = self._rows("SELECT narrowed FROM capsules WHERE id = ?", capsule.id)
        found = json.loads(rows[0]["narrowed"]) if rows else []
        return [(network, tuple(write)) for network, write in found]

    def inherit_narrowings(self, capsule: Capsule, origin: Capsule) -> None:
        """For a capsule that starts from the files of another."""
        with self._write() as db:
            for narrowing in self.narrowings(origin):
                self._note_narrowing(db, capsule, narrowing)
        self.describe([capsule])

    def _note_narrowing(self, db: Connection, capsule: Capsule, narrowing: Narrowing) -> None:
        known = self.narrowings(capsule)
        if narrowing not in known:
            text = json.dumps([*known, narrowing])
            db.execute("UPDATE capsules SET narrowed = ? WHERE id = ?", (text, capsule.id))
