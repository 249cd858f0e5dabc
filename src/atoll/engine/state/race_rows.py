"""The tables of races and their candidates."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from atoll.engine.state.database import DamagedError, Database
from atoll.model.agent import AgentBudget
from atoll.model.check import parse_check_spec
from atoll.model.errors import StateError
from atoll.model.race import (
    Candidate,
    CandidateSpec,
    CandidateState,
    Race,
    RaceSpec,
    RaceState,
)

_COLUMNS = frozenset({"race_id", "position", "name", "state"})
"""Fields of a candidate that have a column of their own."""


class RaceRows(Database):
    """Part of the store."""

    def add_race(
        self, project_id: str, name: str, base_commit: str, spec: RaceSpec, names: Sequence[str]
    ) -> Race:
        """Stores a race with its candidates, which have these names and are queued."""
        now = time.time()
        with self._write() as db:
            cursor = db.execute(
                "INSERT INTO races (project_id, name, state, base_commit, created_at, payload) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (project_id, name, RaceState.RUNNING, base_commit, now, _encode_spec(spec)),
            )
            number = cursor.lastrowid or 0
            queued = [
                Candidate(number, position, one, CandidateState.QUEUED, candidate)
                for position, (one, candidate) in enumerate(
                    zip(names, spec.candidates, strict=True), start=1
                )
            ]
            db.executemany(
                "INSERT INTO candidates VALUES (?, ?, ?, ?, ?)", [_row_of(one) for one in queued]
            )
        return Race(number, project_id, name, RaceState.RUNNING, base_commit, None, now, None, spec)

    def race(self, race_id: int) -> Race | None:
        return next(iter(self._races("id = ?", race_id)), None)

    def find_race(self, project_id: str, name: str) -> Race | None:
        return next(iter(self._races("project_id = ? AND name = ?", project_id, name)), None)

    def races(self, project_id: str | None = None) -> list[Race]:
        """Those of a project, or of all projects, the oldest first."""
        if project_id is None:
            return self._races("1")
        return self._races("project_id = ?", project_id)

    def _races(self, condition: str, *values: object) -> list[Race]:
        rows = self._rows(
            f"SELECT * FROM races WHERE {condition} ORDER BY id",  # noqa: S608 - our own words
            *values,
        )
        return [_race(dict(row)) for row in rows]

    def set_race_state(self, race: Race, state: RaceState) -> Race:
        """Also sets or clears when it ended."""
        ended_at = time.time() if state is RaceState.FINISHED else None
        with self._write() as db:
            db.execute(
                "UPDATE races SET state = ?, ended_at = ? WHERE id = ?", (state, ended_at, race.id)
            )
        return race._replace(state=state, ended_at=ended_at)

    def set_winner(self, race: Race, winner: str | None) -> Race:
        """The name of a candidate."""
        with self._write() as db:
            db.execute("UPDATE races SET winner = ? WHERE id = ?", (winner, race.id))
        return race._replace(winner=winner)

    def set_stopping(self, race: Race) -> Race:
        """Has whoever carries it on end it."""
        with self._write() as db:
            db.execute("UPDATE races SET is_stopping = 1 WHERE id = ?", (race.id,))
        return race._replace(is_stopping=True)

    def forget_race(self, race: Race) -> None:
        with self._write() as db:
            db.execute("DELETE FROM races WHERE id = ?", (race.id,))

    def candidates(self, race_id: int) -> list[Candidate]:
        """In their order."""
        rows = self._rows("SELECT * FROM candidates WHERE race_id = ? ORDER BY position", race_id)
        return [_candidate(dict(row)) for row in rows]

    def add_candidate(self, candidate: Candidate) -> Candidate:
        """Stores one more candidate of a race, at the next position, which is returned with it.
        Raises StateError if there is one with this name.
        """
        with self._write() as db:
            [last] = db.execute(
                "SELECT coalesce(max(position), 0) FROM candidates WHERE race_id = ?",
                (candidate.race_id,),
            ).fetchone()
            added = candidate._replace(position=last + 1)
            is_added = db.execute(
                "INSERT OR IGNORE INTO candidates VALUES (?, ?, ?, ?, ?)", _row_of(added)
            ).rowcount
        if not is_added:
            raise StateError(f"the race already has a candidate `{candidate.name}`")
        return added

    def set_candidate(self, candidate: Candidate, *, durable: bool = True) -> None:
        """Replaces what is stored of a candidate; does nothing if its race was removed."""
        with self._write(durable=durable) as db:
            *_, state, payload = _row_of(candidate)
            db.execute(
                "UPDATE candidates SET state = ?, payload = ? WHERE race_id = ? AND position = ?",
                (state, payload, candidate.race_id, candidate.position),
            )


def _row_of(candidate: Candidate) -> tuple[int, int, str, str, str]:
    fields = {key: value for key, value in candidate._asdict().items() if key not in _COLUMNS}
    fields["spec"] = candidate.spec._asdict()
    return (*candidate[:3], str(candidate.state), json.dumps(fields))


def _encode_spec(spec: RaceSpec) -> str:
    fields = spec._asdict()
    # Each candidate's own is stored with it, and may be longer than everything else.
    del fields["candidates"]
    fields["checks"] = [check._asdict() for check in spec.checks]
    fields["budget"] = spec.budget._asdict()
    return json.dumps(fields)


def _race(row: Mapping[str, Any]) -> Race:
    columns = {key: value for key, value in row.items() if key != "payload"}
    try:
        found: dict[str, Any] = json.loads(row["payload"])
        checks = tuple(parse_check_spec(check) for check in found.pop("checks"))
        budget = AgentBudget(**found.pop("budget"))
        found |= {key: tuple(found.get(key, ())) for key in ("limits", "accept")}
        spec = RaceSpec(**found, candidates=(), checks=checks, budget=budget)
        fixed = {"state": RaceState(row["state"]), "is_stopping": bool(row["is_stopping"])}
        return Race(**{**columns, **fixed, "spec": spec})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"the database holds a damaged record: {error}") from error


def _candidate(row: Mapping[str, Any]) -> Candidate:
    try:
        found: dict[str, Any] = json.loads(row["payload"])
        spec = found.pop("spec")
        lists = {key: tuple(spec[key]) for key in ("argv", "graft")}
        return Candidate(
            row["race_id"], row["position"], row["name"], CandidateState(row["state"]),
            CandidateSpec(**{**spec, **lists}), **found,
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"the database holds a damaged record: {error}") from error
