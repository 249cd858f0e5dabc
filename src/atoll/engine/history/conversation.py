"""The conversation with an agent as a part of a capsule.

What the agent itself remembers is in the private home, and so in the layers. The payload says which
turns led there: after a rollback, the turns since the snapshot are not part of the conversation any
more, although their runs stay.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from atoll.engine.state.parts import Part
from atoll.engine.state.session import Session
from atoll.host import files
from atoll.keeper import log
from atoll.model.agent import AgentTurn
from atoll.model.state import CapsuleRecord, PartChange, RunState, Snapshot

_NAME = "agent"
_LOGS = (log.CURRENT, log.OLDER)


class Conversation(Part):
    """The payload is a JSON list of turn numbers; empty without an agent."""

    name = _NAME

    def snapshot(self, session: Session, capsule: CapsuleRecord, *, busy: bool) -> PartChange:
        del busy
        current = session.store.part(capsule, _NAME)
        return PartChange(current, current)

    def restore(self, session: Session, capsule: CapsuleRecord, target: Snapshot) -> PartChange:
        return PartChange(session.store.part(capsule, _NAME), target.parts.get(_NAME, ""))

    def fork(
        self, session: Session, origin: CapsuleRecord, point: Snapshot, made: CapsuleRecord
    ) -> None:
        agent = session.store.find_agent(origin.id)
        payload = point.parts.get(_NAME, "")
        if agent is None or not payload:
            return
        session.store.copy_agent(agent, made.id, _parse(payload))
        session.store.set_part(made, _NAME, payload)
        for turn in turns(session, made):
            _link_log(session, origin, turn, made)

    def report(self, session: Session, capsule: CapsuleRecord) -> Mapping[str, str]:
        agent = session.store.find_agent(capsule.id)
        if agent is None:
            return {}
        count = len(turns(session, capsule))
        return {"agent": agent.adapter, "turns": str(count), "state": str(agent.state)}


def turns(session: Session, capsule: CapsuleRecord) -> list[AgentTurn]:
    """The turns that led to the present state, the oldest first."""
    numbers = set(_parse(session.store.part(capsule, _NAME)))
    return [turn for turn in session.store.turns(capsule.id) if turn.number in numbers]


def restart(session: Session, capsule: CapsuleRecord) -> None:
    """Begins a new conversation; earlier turns stay stored."""
    session.store.set_part(capsule, _NAME, "")


def add_turn(session: Session, capsule: CapsuleRecord, prompt: str) -> AgentTurn:
    """Stores a turn before its run is started."""
    before = [turn.number for turn in turns(session, capsule)]
    turn = session.store.add_turn(capsule.id, 0, prompt)
    session.store.set_part(capsule, _NAME, json.dumps([*before, turn.number]))
    return turn


def log_directory(capsule: CapsuleRecord, turn: AgentTurn) -> Path:
    """Where the output of a turn is recorded, also when the capsule it came from is gone."""
    if turn.run:
        return Path(capsule.directory, "runs", str(turn.run))
    return Path(capsule.directory, "turns", str(turn.number))


def _parse(payload: str) -> Sequence[int]:
    return [int(number) for number in json.loads(payload or "[]")]


def _link_log(
    session: Session, origin: CapsuleRecord, turn: AgentTurn, made: CapsuleRecord
) -> None:
    """Gives a fork the output of a turn that has ended: nothing is written to it any more."""
    of = next(t for t in session.store.turns(origin.id) if t.number == turn.number)
    runs = {run.number: run for run in session.store.runs(origin)}
    run = runs.get(of.run)
    if run is not None and run.state is not RunState.ENDED:
        return
    target = log_directory(made, turn)
    files.make_private_directory(target)
    for name in _LOGS:
        with suppress(FileNotFoundError, FileExistsError):
            os.link(log_directory(origin, of) / name, target / name)
