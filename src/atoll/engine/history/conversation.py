"""The conversation with an agent as a part of a capsule.

What the agent itself remembers is in the private home, and so in the layers. The payload says which
turns led there: after a rollback, the turns since the snapshot are not part of the conversation any
more, although their runs stay. A turn that was under way at the moment of the snapshot is cut: what
it came to afterwards belongs to another course of events.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from atoll.engine.state.parts import Part
from atoll.engine.state.session import Session
from atoll.host import files
from atoll.keeper import log
from atoll.model.agent import AgentTurn
from atoll.model.errors import StateError
from atoll.model.state import CapsuleRecord, PartChange, Snapshot

_NAME = "agent"
_LOGS = (log.CURRENT, log.OLDER)


class _Course(NamedTuple):
    """The payload; empty without an agent."""

    turns: tuple[int, ...] = ()
    cuts: Mapping[int, float] = {}
    """By turn: when it was cut."""

    def encode(self) -> str:
        cuts = {str(number): at for number, at in self.cuts.items()}
        return json.dumps({"turns": self.turns, "cuts": cuts}) if self.turns else ""


class Conversation(Part):
    name = _NAME

    def snapshot(self, session: Session, capsule: CapsuleRecord, *, busy: bool) -> PartChange:
        del busy
        return PartChange(_cut_now(session, capsule), session.store.part(capsule, _NAME))

    def restore(self, session: Session, capsule: CapsuleRecord, target: Snapshot) -> PartChange:
        return PartChange(_cut_now(session, capsule), target.parts.get(_NAME, ""))

    def fork(
        self, session: Session, origin: CapsuleRecord, point: Snapshot, made: CapsuleRecord
    ) -> None:
        agent = session.store.find_agent(origin.id)
        course = _parse(point.parts.get(_NAME, ""), origin.name)
        if agent is None or not course.turns:
            return
        session.store.copy_agent(agent, made.id, course.turns)
        session.store.set_part(made, _NAME, course.encode())
        for turn in turns(session, made):
            _link_log(session, origin, turn, made)

    def report(self, session: Session, capsule: CapsuleRecord) -> Mapping[str, str]:
        agent = session.store.find_agent(capsule.id)
        if agent is None:
            return {}
        count = len(turns(session, capsule))
        return {"agent": agent.adapter, "turns": str(count), "state": str(agent.state)}


def turns(session: Session, capsule: CapsuleRecord) -> list[AgentTurn]:
    """The turns that led to the present state, the oldest first. One that was cut has no end."""
    course = _load(session, capsule)
    found = [turn for turn in session.store.turns(capsule.id) if turn.number in course.turns]
    return [
        turn._replace(verdict="", cut_at=course.cuts[turn.number])
        if turn.number in course.cuts
        else turn
        for turn in found
    ]


def restart(session: Session, capsule: CapsuleRecord) -> None:
    """Begins a new conversation; earlier turns stay stored."""
    session.store.set_part(capsule, _NAME, "")


def add_turn(
    session: Session, capsule: CapsuleRecord, prompt: str, *, run: int = 0, is_screen: bool
) -> AgentTurn:
    """Stores a turn, before its run is started unless it is typed into one that is there. The
    caller holds the lock of the agent.
    """
    stored = session.store.turns(capsule.id)
    number = 1 + max((turn.number for turn in stored), default=0)
    turn = AgentTurn(capsule.id, number, run, prompt, time.time(), is_screen=is_screen)
    course = _load(session, capsule)
    # First the payload: killed before the turn is stored, it names one that does not exist.
    before = tuple(one for one in course.turns if one < number)
    longer = course._replace(turns=(*before, number))
    session.store.set_part(capsule, _NAME, longer.encode())
    session.store.add_turn(turn)
    return turn


def log_directory(capsule: CapsuleRecord, turn: AgentTurn) -> Path:
    """Where the output of a turn is recorded, also when the capsule it came from is gone. Of a turn
    that was cut, entries later than `cut_at` are not part of it.
    """
    if turn.run:
        return Path(capsule.directory, "runs", str(turn.run))
    return Path(capsule.directory, "turns", str(turn.number))


def _cut_now(session: Session, capsule: CapsuleRecord) -> str:
    """The payload of a snapshot of the present state."""
    course = _load(session, capsule)
    found = turns(session, capsule)
    if not found or found[-1].verdict or found[-1].cut_at is not None:
        return course.encode()
    return course._replace(cuts={**course.cuts, found[-1].number: time.time()}).encode()


def _load(session: Session, capsule: CapsuleRecord) -> _Course:
    return _parse(session.store.part(capsule, _NAME), capsule.name)


def _parse(payload: str, name: str) -> _Course:
    if not payload:
        return _Course()
    try:
        raw = json.loads(payload)
        cuts = {int(number): float(at) for number, at in raw["cuts"].items()}
        return _Course(tuple(int(number) for number in raw["turns"]), cuts)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StateError(
            f"the record of the conversation in `{name}` is damaged",
            hint=f"atoll snapshots {name}; atoll rollback {name} N",
        ) from error


def _link_log(
    session: Session, origin: CapsuleRecord, turn: AgentTurn, made: CapsuleRecord
) -> None:
    """Gives a fork the output of a turn. What is still written to it comes after the cut."""
    of = next(t for t in session.store.turns(origin.id) if t.number == turn.number)
    target = log_directory(made, turn)
    files.make_private_directory(target)
    for name in _LOGS:
        with suppress(FileNotFoundError, FileExistsError):
            os.link(log_directory(origin, of) / name, target / name)
