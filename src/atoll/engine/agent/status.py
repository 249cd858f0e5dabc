"""The state of an agent, decided from facts: processes, output, CPU time, model traffic, verdicts.

Nothing that an agent says takes part, so that an agent that was injected cannot look finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from atoll.engine.agent.verdicts import TurnVerdict
from atoll.model.agent import VAULT_LOCKED, AgentState, ModelTraffic, render_quota

IDLE_S = 60.0
"""A headless agent is idle after this time without output, model traffic and CPU use."""
WAITING_S = 5.0
"""An agent with its own screen waits for a person after this time."""
_NEEDS_PERSON = frozenset({401, 402, 403, 503})
"""Answers to a model request that a repetition does not change."""


class AgentFacts(NamedTuple):
    """What was observed of an agent at one moment."""

    now: float
    turns: int = 0
    """Of the present conversation."""
    has_turns: bool = False
    """Whether there ever was one."""
    is_preparing: bool = False
    """Whether a command that starts a turn is at work."""
    is_interactive: bool = False
    is_alive: bool = False
    """Whether the run of the last turn has processes."""
    is_paused: bool = False
    """Whether the capsule is paused."""
    is_locked: bool = False
    """Whether the end of the last turn waits for the key of the vault."""
    is_concluding: bool = False
    """Whether a process records the end of the last turn."""
    was_cut: bool = False
    """Whether the capsule has returned to a moment within the last turn, or was forked there."""
    started_at: float = 0.0
    active_at: float = 0.0
    """When it last wrote output or used the CPU."""
    has_spoken: bool = False
    """Whether it has written any output."""
    traffic: ModelTraffic = ModelTraffic()
    excess: str = ""
    """Which budget is used up."""
    verdict: TurnVerdict | None = None
    """Of the last turn."""


Rule = tuple[bool, AgentState, str]
"""Whether it applies, and what it says."""


def decide(facts: AgentFacts) -> tuple[AgentState, str]:
    """The state and its reason: of the first rule that applies. Pure.

    A reason contains no running time: that is `since`.
    """
    rules = _rules_alive(facts) if facts.is_alive and not facts.is_preparing else _rules(facts)
    return next((state, reason) for applies, state, reason in rules if applies)


def _rules(facts: AgentFacts) -> Iterator[Rule]:
    """For an agent without a process."""
    verdict, until = facts.verdict, facts.traffic.paused_until
    yield facts.is_preparing, AgentState.STARTING, "its capsule is being prepared"
    is_back = facts.turns == 0 and facts.has_turns
    yield is_back, AgentState.IDLE, "it was rolled back to before its first turn"
    yield facts.turns == 0, AgentState.LOST, "the command that started it was killed"
    if verdict is not None:
        yield bool(verdict.held and facts.excess), AgentState.OVER_BUDGET, facts.excess
        if verdict.held and until is not None and until > facts.now:
            yield True, AgentState.WAITING, render_quota(until)
        yield True, verdict.state, verdict.reason
    yield facts.was_cut, AgentState.IDLE, "its capsule returned to the middle of this turn"
    yield facts.is_locked, AgentState.WAITING, VAULT_LOCKED
    yield facts.is_concluding, AgentState.WORKING, "its work is being recorded and checked"
    yield True, AgentState.LOST, "its process disappeared"


def _rules_alive(facts: AgentFacts) -> Iterator[Rule]:
    traffic = facts.traffic
    quiet_s = facts.now - max(facts.active_at, traffic.last_at or 0.0, facts.started_at)
    is_asking = traffic.in_flight > 0
    until = traffic.paused_until or 0.0
    is_refused = traffic.last_status in _NEEDS_PERSON or traffic.last_status is None
    is_quiet = quiet_s >= IDLE_S
    is_new = not facts.has_spoken and traffic.last_at is None and not is_asking
    yield facts.is_paused, AgentState.WAITING, "it is paused"
    yield bool(facts.excess), AgentState.OVER_BUDGET, facts.excess
    yield until > facts.now, AgentState.WAITING, render_quota(until)
    yield bool(traffic.trouble) and is_refused, AgentState.WAITING, traffic.trouble
    is_waiting = facts.is_interactive and quiet_s >= WAITING_S and not is_asking
    yield is_waiting, AgentState.WAITING, "for your next message"
    yield is_quiet and is_asking, AgentState.IDLE, "its model does not answer"
    yield is_quiet, AgentState.IDLE, "no output, model traffic or CPU use"
    yield is_new, AgentState.STARTING, ""
    yield True, AgentState.WORKING, traffic.trouble


def since(facts: AgentFacts, recorded: tuple[AgentState, str, float] | None) -> float:
    """Since when the present state holds; `recorded` is the state that was stored last."""
    state, reason = decide(facts)
    if recorded is not None and recorded[:2] == (state, reason):
        return recorded[2]
    if state in (AgentState.WAITING, AgentState.IDLE):
        return max(facts.active_at, facts.traffic.last_at or 0.0, facts.started_at)
    if facts.verdict is not None and not facts.is_alive:
        return facts.verdict.at
    return facts.started_at or facts.now
