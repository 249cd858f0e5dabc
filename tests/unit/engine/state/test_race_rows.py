"""Races in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from atoll.engine.state.database import DamagedError
from atoll.engine.state.store import Store
from atoll.model.agent import AgentBudget
from atoll.model.check import CheckSource, CheckSpec
from atoll.model.race import CandidateSpec, CandidateState, RaceSpec, RaceState
from atoll.model.state import ProjectRecord

if TYPE_CHECKING:
    from pathlib import Path

SPECS = (
    CandidateSpec(agent="script", prompt="do \x1b it", script="#!/bin/sh\n"),
    CandidateSpec(argv=("sh", "-c", "x"), env={"A": "ü"}, model="m", graft=("a:src",)),
)
SPEC = RaceSpec(
    task="t", candidates=SPECS, level="sandbox", limits=("memory=4G",), timeout_s=3.0, most=2,
    checks=(CheckSpec("test", "make test", needs=("db",), source=CheckSource.DETECTED),),
    budget=AgentBudget(tokens=5), rule="checks", promote_to="local", base_ref="main",
)  # fmt: skip


def test_what_is_stored_is_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    project = store.remember_project(ProjectRecord("p", "p", "/p", "/p/.git"))
    race = store.add_race(project.id, "r", "c" * 40, SPEC, ("r-1", "r-2"))
    found = store.find_race(project.id, "r")
    assert found == race._replace(spec=SPEC._replace(candidates=()))
    assert store.race(race.id) == found
    assert store.races(project.id) == store.races() == [found]
    candidates = store.candidates(race.id)
    assert [one.spec for one in candidates] == list(SPECS)
    assert [(one.name, one.position) for one in candidates] == [("r-1", 1), ("r-2", 2)]

    changed = candidates[1]._replace(
        state=CandidateState.DONE, reason="why", run=3, attempts=2, cost_usd=1.5, tree="t"
    )
    store.set_candidate(changed)
    assert store.candidates(race.id)[1] == changed
    added = store.add_candidate(changed._replace(name="r-graft"))
    assert added.position == 3
    assert store.candidates(race.id)[2] == added

    assert store.set_race_state(race, RaceState.FINISHED).ended_at is not None
    store.set_winner(race, "r-2")
    store.set_stopping(race)
    now = store.race(race.id)
    assert now is not None
    assert (now.state, now.winner, now.is_stopping) == (RaceState.FINISHED, "r-2", True)
    store.forget_race(race)
    assert store.race(race.id) is None
    assert store.candidates(race.id) == []
    # The race was removed meanwhile.
    store.set_candidate(changed)
    assert store.candidates(race.id) == []


def test_damaged_rows_are_reported(tmp_path: Path) -> None:
    store = Store(tmp_path)
    project = store.remember_project(ProjectRecord("p", "p", "/p", "/p/.git"))
    race = store.add_race(project.id, "r", "c" * 40, SPEC, ("r-1", "r-2"))
    for table in ("races", "candidates"):
        with store._write() as db:
            db.execute(f"UPDATE {table} SET payload = '[]'")
    with pytest.raises(DamagedError):
        store.race(race.id)
    with pytest.raises(DamagedError):
        store.candidates(race.id)
