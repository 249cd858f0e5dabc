"""Looks at an agent: gathers the facts from which its state follows, without asking it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from atoll.engine.agent import activity, budgets, event_log, screen_text, selection, turns
from atoll.engine.agent.activity import CpuSample, RunFacts
from atoll.engine.agent.states import record_state
from atoll.engine.agent.status import AgentFacts, decide, since
from atoll.engine.agent.verdicts import TurnVerdict
from atoll.engine.capsule import overview
from atoll.engine.capsule.overview import Changed
from atoll.engine.history import conversation
from atoll.engine.run import freezer, runs
from atoll.engine.secret import scan
from atoll.engine.state.session import Session
from atoll.host import files, locks
from atoll.keeper import log
from atoll.keeper.log import read_log_end
from atoll.model.agent import AgentEventKind, AgentRecord, AgentState, AgentTurn, ModelUsage
from atoll.model.errors import AtollError, StateError
from atoll.model.state import CapsuleRecord, Run

_NOTE = "agent-activity.json"
_NOTE_BYTES = 64 << 10
_HEAD_BYTES = 512
_SCREEN_BYTES = 64 << 10
"""Of the log: what says how steadily a screen writes."""
_END_BYTES = 128 << 10
_LATE_S = 10.0
_TELLING = (
    AgentEventKind.MESSAGE,
    AgentEventKind.TOOL_CALL,
    AgentEventKind.ERROR,
    AgentEventKind.END,
    AgentEventKind.NOTICE,
)


class AgentStatus(NamedTuple):
    """An agent as it was observed at one moment."""

    capsule: str
    project: str
    agent: AgentRecord
    state: AgentState
    reason: str
    since: float
    turns: int
    usage: tuple[ModelUsage, ...]
    """Priced as now where no price was known then."""
    run: Run | None
    """The run of the last turn."""
    changed: Changed | None
    line: str
    """The last thing that the agent wrote: hostile text."""

    @property
    def tokens(self) -> int:
        return sum(used.input_tokens + used.output_tokens for used in self.usage)

    @property
    def cost_usd(self) -> float | None:
        """None when the price of one of its models is unknown."""
        costs = [used.cost_usd for used in self.usage]
        return None if None in costs else sum(cost or 0.0 for cost in costs)


def look(session: Session, capsule: CapsuleRecord, agent: AgentRecord) -> AgentStatus:
    """Observes an agent, records a state that is new, and provides for a turn that nothing
    concluded.
    """
    recorded = conversation.turns(session, capsule)
    run, state, reason, began = _look(session, capsule, agent, recorded)
    return AgentStatus(
        capsule=capsule.name,
        project=session.store.project_name(capsule.project_id),
        agent=agent._replace(state=state, reason=reason),
        state=state,
        reason=reason,
        since=began,
        turns=len(recorded),
        usage=_priced(session, session.store.usage(capsule.id)),
        run=run,
        changed=overview.find_changed(session, capsule),
        line=_last_line(session, capsule, agent, recorded[-1]) if recorded else "",
    )


def _priced(session: Session, usage: Sequence[ModelUsage]) -> tuple[ModelUsage, ...]:
    try:
        prices = budgets.owner_limits(session).prices
    except (AtollError, OSError):
        return tuple(usage)
    return tuple(used._replace(cost_usd=budgets.cost_usd(used, prices)) for used in usage)


def find_state(session: Session, capsule: CapsuleRecord, agent: AgentRecord) -> AgentState:
    """As `look`, but the state alone, which costs less."""
    return _look(session, capsule, agent, conversation.turns(session, capsule))[1]


def _look(
    session: Session, capsule: CapsuleRecord, agent: AgentRecord, recorded: list[AgentTurn]
) -> tuple[Run | None, AgentState, str, float]:
    if agent.is_damaged:
        return None, AgentState.LOST, agent.reason, agent.since
    run = turns.find_run(session, capsule, recorded[-1]) if recorded else None
    if run is not None:
        run = runs.settle(session, run)
    facts = gather(session, capsule, agent, recorded, run)
    if run is not None and not session.read_only and _is_forgotten(session, capsule, facts, run):
        if scan.is_locked(session, capsule):
            facts = facts._replace(is_locked=True)
        else:
            turns.watch(session, run)
    state, reason = decide(facts)
    if not session.read_only:
        record_state(session, capsule, state, reason)
    return run, state, reason, since(facts, (agent.state, agent.reason, agent.since))


def gather(
    session: Session,
    capsule: CapsuleRecord,
    agent: AgentRecord,
    recorded: list[AgentTurn],
    run: Run | None,
) -> AgentFacts:
    now = time.time()
    is_busy = locks.is_locked(turns.lock_of(session, capsule).path)
    is_alive = run is not None and runs.is_alive(session, run)
    last = recorded[-1] if recorded else None
    verdict = turns.find_verdict(last) if last is not None else None
    active_at, has_spoken = 0.0, False
    if run is not None and is_alive:
        active_at, has_spoken = _activity(session, capsule, run, now)
    return AgentFacts(
        now=now,
        turns=len(recorded),
        has_turns=bool(session.store.turns(capsule.id)),
        is_preparing=is_busy and (last is None or (last.run == 0 and verdict is None)),
        is_interactive=run is not None and run.tty,
        is_alive=is_alive,
        is_paused=freezer.is_paused(capsule),
        # Nothing else is left to do once it has ended; see `_is_forgotten`.
        is_concluding=is_busy or (run is not None and not is_alive),
        was_cut=last is not None and last.cut_at is not None,
        started_at=last.at if last is not None else agent.created_at,
        active_at=active_at,
        has_spoken=has_spoken,
        traffic=turns.traffic_of(session, capsule, last),
        excess=_find_excess(session, capsule, verdict),
        verdict=verdict,
    )


def _find_excess(session: Session, capsule: CapsuleRecord, verdict: TurnVerdict | None) -> str:
    # A turn that was held goes on as a new one.
    messages = 1 if verdict is not None and verdict.held else 0
    found = budgets.find_excess_and_cure(session, capsule.id, messages=messages)
    # Settings that cannot be read for a moment concern an agent only when it asks its model.
    is_real = found is not None and (
        found.is_limit or session.store.traffic(capsule.id).held_since is not None
    )
    return found.reason if found is not None and is_real else ""


def _is_forgotten(session: Session, capsule: CapsuleRecord, facts: AgentFacts, run: Run) -> bool:
    """Whether a turn has ended, and the process that concludes it, or that lets it go on when a
    quota is reset, was killed.
    """
    if facts.is_alive or run.ended_at is None:
        return False
    since = run.ended_at
    if facts.verdict is not None:
        is_held = facts.verdict.held == turns.HELD_BY_QUOTA
        if not is_held or facts.excess or facts.is_paused:
            return False
        since = max(since, facts.traffic.paused_until or 0.0)
    is_busy = locks.is_locked(turns.lock_of(session, capsule).path)
    return not is_busy and facts.now - since >= _LATE_S


def _activity(session: Session, capsule: CapsuleRecord, run: Run, now: float) -> tuple[float, bool]:
    """When a run was last active, and whether it ever wrote output.

    Each look notes the CPU time in a file beside the capsule's runs, where nothing inside writes.
    """
    wrote_at, is_cut = 0.0, False
    with suppress(OSError), Path(run.directory, log.CURRENT).open("rb") as stream:
        # The first line of the log is no output.
        if stream.readline(_HEAD_BYTES) and stream.read(1):
            found = os.fstat(stream.fileno())
            wrote_at, is_cut = found.st_mtime, found.st_size > _SCREEN_BYTES
    recent = read_log_end(run.directory, size_bytes=_SCREEN_BYTES) if run.tty else ()
    processes = runs.processes(session, run)
    pids = sorted(p.pid for p in processes)
    before = _load_note(capsule)
    note = before if before.get("token") == run.token else {}
    sample = CpuSample(now, sum(p.cpu_s for p in processes))
    samples = activity.add_sample(activity.parse_samples(note.get("samples")), sample)
    recorded = session.store.turns(capsule.id)
    facts = RunFacts(
        now=now,
        is_screen=run.tty,
        created_at=run.created_at,
        asked_at=recorded[-1].at if recorded else 0.0,
        model_at=session.store.traffic(capsule.id).last_at or 0.0,
        written=(*(entry.time for entry in recent), *((wrote_at,) if wrote_at else ())),
        is_cut=is_cut,
        started=tuple(now - p.age_s for p in processes),
        has_changed=note.get("pids", pids) != pids,
        samples=samples,
        busy_at=_number(note.get("busy_at")),
    )
    busy_at = activity.find_busy_at(facts)
    new = {"token": run.token, "samples": samples, "pids": pids, "busy_at": busy_at}
    with suppress(OSError, AtollError):
        path = Path(capsule.directory, _NOTE)
        files.write_atomic(path, json.dumps(new).encode(), durable=False)
    return activity.find_active_at(facts), wrote_at > 0


def _load_note(capsule: CapsuleRecord) -> dict[str, object]:
    with suppress(OSError, ValueError, StateError):
        content = files.read_regular(Path(capsule.directory, _NOTE), limit_bytes=_NOTE_BYTES)
        found = json.loads(content or b"{}")
        return found if isinstance(found, dict) else {}
    return {}


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _last_line(
    session: Session, capsule: CapsuleRecord, agent: AgentRecord, turn: AgentTurn
) -> str:
    directory = conversation.log_directory(capsule, turn)
    found = read_log_end(directory, size_bytes=_END_BYTES)
    entries = [e for e in found if turn.cut_at is None or e.time <= turn.cut_at]
    if turn.is_screen:
        return screen_text.find_last_words(entries)
    try:
        spec = selection.find_spec(session, agent.adapter, agent.task.command)
    except AtollError:
        return ""
    line = ""
    for event in event_log.read_events(entries, spec.events):
        if event.kind in _TELLING and (event.text.strip() or event.tool):
            line = event.text.strip() or event.tool
            if event.kind is AgentEventKind.TOOL_CALL and event.tool:
                line = f"{event.tool}: {event.text.strip()}"
    return line.splitlines()[-1] if line else ""
