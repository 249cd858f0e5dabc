"""The state of an agent as a table of facts."""

from __future__ import annotations

import pytest

from atoll.engine.agent.status import IDLE_S, WAITING_S, AgentFacts, decide, since
from atoll.engine.agent.verdicts import TurnVerdict
from atoll.model.agent import AgentState, ModelTraffic, render_quota

NOW = 1_000_000.0
ALIVE = AgentFacts(
    now=NOW, turns=1, has_turns=True, is_alive=True, started_at=NOW - 600, active_at=NOW - 1,
    has_spoken=True,
)  # fmt: skip
OVER = ALIVE._replace(is_alive=False)
FINISHED = TurnVerdict(AgentState.FINISHED, "2 checks passed", NOW - 5)
FAILED = TurnVerdict(AgentState.FAILED, "it was stopped", NOW - 5)

HELD = TurnVerdict(AgentState.FAILED, "its model did not answer", NOW - 5, held="budget")

TABLE = [
    (AgentFacts(now=NOW, is_preparing=True), AgentState.STARTING, "its capsule is being prepared"),
    (AgentFacts(now=NOW), AgentState.LOST, "the command that started it was killed"),
    (
        AgentFacts(now=NOW, has_turns=True),
        AgentState.IDLE,
        "it was rolled back to before its first turn",
    ),
    (ALIVE, AgentState.WORKING, ""),
    (ALIVE._replace(has_spoken=False), AgentState.STARTING, ""),
    (
        ALIVE._replace(has_spoken=False, traffic=ModelTraffic(in_flight=1)),
        AgentState.WORKING,
        "",
    ),
    (ALIVE._replace(is_paused=True, excess="5 of 5 turns"), AgentState.WAITING, "it is paused"),
    (ALIVE._replace(excess="5 of 5 turns"), AgentState.OVER_BUDGET, "5 of 5 turns"),
    (
        ALIVE._replace(traffic=ModelTraffic(paused_until=NOW + 60)),
        AgentState.WAITING,
        render_quota(NOW + 60),
    ),
    (ALIVE._replace(traffic=ModelTraffic(paused_until=NOW - 60)), AgentState.WORKING, ""),
    (
        ALIVE._replace(traffic=ModelTraffic(last_status=401, trouble="refused: claude auth login")),
        AgentState.WAITING,
        "refused: claude auth login",
    ),
    (
        ALIVE._replace(traffic=ModelTraffic(trouble="the login has expired")),
        AgentState.WAITING,
        "the login has expired",
    ),
    (
        ALIVE._replace(traffic=ModelTraffic(last_status=529, trouble="overloaded (529)")),
        AgentState.WORKING,
        "overloaded (529)",
    ),
    (
        ALIVE._replace(active_at=NOW - IDLE_S),
        AgentState.IDLE,
        "no output, model traffic or CPU use",
    ),
    (
        ALIVE._replace(active_at=NOW - IDLE_S, traffic=ModelTraffic(last_at=NOW - 1)),
        AgentState.WORKING,
        "",
    ),
    (
        ALIVE._replace(active_at=NOW - 3600, traffic=ModelTraffic(in_flight=1, last_at=NOW - 3600)),
        AgentState.IDLE,
        "its model does not answer",
    ),
    (
        ALIVE._replace(is_interactive=True, active_at=NOW - WAITING_S),
        AgentState.WAITING,
        "for your next message",
    ),
    (
        ALIVE._replace(is_interactive=True, active_at=NOW - 20, traffic=ModelTraffic(1, NOW - 20)),
        AgentState.WORKING,
        "",
    ),
    (
        OVER._replace(is_concluding=True),
        AgentState.WORKING,
        "its work is being recorded and checked",
    ),
    (OVER, AgentState.LOST, "its process disappeared"),
    (
        OVER._replace(was_cut=True, is_concluding=True),
        AgentState.IDLE,
        "its capsule returned to the middle of this turn",
    ),
    (OVER._replace(verdict=FINISHED), AgentState.FINISHED, "2 checks passed"),
    (
        OVER._replace(verdict=FINISHED, excess="5 of 5 turns"),
        AgentState.FINISHED,
        "2 checks passed",
    ),
    (OVER._replace(verdict=FAILED), AgentState.FAILED, "it was stopped"),
    (OVER._replace(verdict=FAILED, excess="5 of 5 turns"), AgentState.FAILED, "it was stopped"),
    (OVER._replace(verdict=HELD, excess="5 of 5 turns"), AgentState.OVER_BUDGET, "5 of 5 turns"),
    (
        OVER._replace(verdict=HELD, traffic=ModelTraffic(paused_until=NOW + 60)),
        AgentState.WAITING,
        render_quota(NOW + 60),
    ),
    (OVER._replace(verdict=HELD), AgentState.FAILED, "its model did not answer"),
    (ALIVE._replace(verdict=FINISHED), AgentState.WORKING, ""),
]


@pytest.mark.parametrize(("facts", "state", "reason"), TABLE)
def test_state_follows_from_facts(facts: AgentFacts, state: AgentState, reason: str) -> None:
    assert decide(facts) == (state, reason)


def test_every_state_is_in_the_table() -> None:
    assert {state for _, state, _ in TABLE} == set(AgentState)


def test_since_is_kept_while_state_and_reason_are_the_same() -> None:
    assert since(ALIVE, (AgentState.WORKING, "", 5.0)) == 5.0
    assert since(ALIVE, (AgentState.WAITING, "", 5.0)) == ALIVE.started_at
    assert since(ALIVE._replace(active_at=NOW - 90), None) == NOW - 90
    assert since(OVER._replace(verdict=FAILED), None) == FAILED.at
