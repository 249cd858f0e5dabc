"""The tables of agents: what was asked of them, their turns, and what the broker counted."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from atoll.engine.state.database import Database
from atoll.model.agent import (
    AgentBudget,
    AgentRecord,
    AgentState,
    AgentTask,
    AgentTurn,
    ModelTraffic,
    ModelUsage,
)


class AgentRows(Database):
    """Part of the store."""

    def save_agent(self, capsule_id: int, adapter: str, task: AgentTask) -> AgentRecord:
        """Adds the agent of a capsule, or replaces it; turns and usage stay."""
        now = time.time()
        with self._write() as db:
            db.execute(
                "INSERT INTO agents VALUES (?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (capsule_id) DO UPDATE SET adapter = excluded.adapter, "
                "task = excluded.task, state = excluded.state, reason = excluded.reason, "
                "since = excluded.since",
                (capsule_id, adapter, _encode(task), AgentState.STARTING, "", now, now),
            )
        found = self.find_agent(capsule_id)
        assert found is not None  # noqa: S101 - just written
        return found

    def set_task(self, capsule_id: int, task: AgentTask) -> None:
        """For a changed budget."""
        with self._write() as db:
            db.execute(
                "UPDATE agents SET task = ? WHERE capsule_id = ?", (_encode(task), capsule_id)
            )

    def set_agent_state(self, capsule_id: int, state: AgentState, reason: str) -> None:
        """Does nothing when both are as recorded: `since` is the time of the last change."""
        with self._write(durable=False) as db:
            db.execute(
                "UPDATE agents SET state = ?, reason = ?, since = ? "
                "WHERE capsule_id = ? AND (state <> ? OR reason <> ?)",
                (state, reason, time.time(), capsule_id, state, reason),
            )

    def find_agent(self, capsule_id: int) -> AgentRecord | None:
        return next(iter(self._agents("a.capsule_id = ?", capsule_id)), None)

    def agents(self, project_id: str) -> list[AgentRecord]:
        return self._agents("c.project_id = ?", project_id)

    def all_agents(self) -> list[AgentRecord]:
        return self._agents("1")

    def _agents(self, condition: str, *values: object) -> list[AgentRecord]:
        rows = self._rows(
            "SELECT a.* FROM agents a JOIN capsules c ON c.id = a.capsule_id "  # noqa: S608 - our own words
            f"WHERE {condition} ORDER BY c.id",
            *values,
        )
        return [_agent(dict(row)) for row in rows]

    def add_turn(self, turn: AgentTurn) -> None:
        with self._write() as db:
            db.execute(
                "INSERT INTO agent_turns VALUES (?, ?, ?, ?, ?, ?, ?)",
                (turn.capsule_id, turn.number, turn.run, turn.prompt, turn.at, turn.verdict,
                 turn.is_screen),
            )  # fmt: skip

    def set_turn_run(self, turn: AgentTurn, run: int) -> None:
        """The run that was started for a turn, which is stored before."""
        with self._write() as db:
            db.execute(
                "UPDATE agent_turns SET run = ? WHERE capsule_id = ? AND number = ?",
                (run, turn.capsule_id, turn.number),
            )

    def copy_agent(self, origin: AgentRecord, capsule_id: int, turns: Sequence[int]) -> None:
        """Gives a fork the agent of its origin with these turns, which have no run of the fork's.

        Usage is not copied: it was paid for once.
        """
        now = time.time()
        with self._write() as db:
            db.execute(
                "INSERT OR REPLACE INTO agents SELECT ?, adapter, task, state, reason, ?, ? "
                "FROM agents WHERE capsule_id = ?",
                (capsule_id, now, now, origin.capsule_id),
            )
            db.executemany(
                "INSERT OR REPLACE INTO agent_turns SELECT ?, number, 0, prompt, at, verdict, "
                "is_screen FROM agent_turns WHERE capsule_id = ? AND number = ?",
                [(capsule_id, origin.capsule_id, number) for number in turns],
            )

    def set_verdict(self, turn: AgentTurn, verdict: str) -> None:
        with self._write() as db:
            db.execute(
                "UPDATE agent_turns SET verdict = ? WHERE capsule_id = ? AND number = ?",
                (verdict, turn.capsule_id, turn.number),
            )

    def turns(self, capsule_id: int) -> list[AgentTurn]:
        rows = self._rows(
            "SELECT * FROM agent_turns WHERE capsule_id = ? ORDER BY number", capsule_id
        )
        return [AgentTurn(**{**dict(row), "is_screen": bool(row["is_screen"])}) for row in rows]

    def add_usage(self, capsule_id: int, usage: ModelUsage) -> None:
        """Adds to what was counted. A cost that is unknown once stays unknown."""
        with self._write(durable=False) as db:
            db.execute(
                "INSERT INTO model_usage VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (capsule_id, model) DO UPDATE SET "
                "requests = requests + excluded.requests, "
                "input_tokens = input_tokens + excluded.input_tokens, "
                "output_tokens = output_tokens + excluded.output_tokens, "
                "cached_tokens = cached_tokens + excluded.cached_tokens, "
                "cost_usd = cost_usd + excluded.cost_usd, "
                "uncounted = uncounted + excluded.uncounted",
                (capsule_id, *usage),
            )

    def usage(self, capsule_id: int) -> list[ModelUsage]:
        rows = self._rows(
            "SELECT model, requests, input_tokens, output_tokens, cached_tokens, "
            "cost_usd, uncounted "
            "FROM model_usage WHERE capsule_id = ? ORDER BY model",
            capsule_id,
        )
        return [ModelUsage(**dict(row)) for row in rows]

    def set_traffic(self, capsule_id: int, traffic: ModelTraffic) -> None:
        with self._write(durable=False) as db:
            db.execute(
                "INSERT OR REPLACE INTO model_traffic VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (capsule_id, *traffic),
            )

    def traffic(self, capsule_id: int) -> ModelTraffic:
        rows = self._rows(
            "SELECT in_flight, last_at, last_status, trouble, paused_until, held_s, held_since "
            "FROM model_traffic WHERE capsule_id = ?",
            capsule_id,
        )
        return ModelTraffic(**dict(rows[0])) if rows else ModelTraffic()


def _encode(task: AgentTask) -> str:
    return json.dumps({**task._asdict(), "budget": task.budget._asdict()})


def _agent(row: Mapping[str, Any]) -> AgentRecord:
    try:
        return _parse_agent(row)
    except (ValueError, TypeError, KeyError, AttributeError):
        # The other agents can be shown all the same.
        return AgentRecord(
            row["capsule_id"], str(row["adapter"]), AgentTask(""), AgentState.LOST,
            "its record is damaged", row["since"], row["created_at"], is_damaged=True,
        )  # fmt: skip


def _parse_agent(row: Mapping[str, Any]) -> AgentRecord:
    task = json.loads(row["task"])
    lists = {key: tuple(task[key]) for key in ("checks", "command") if key in task}
    return AgentRecord(
        **{
            **row,
            "task": AgentTask(**{**task, **lists, "budget": AgentBudget(**task["budget"])}),
            "state": AgentState(row["state"]),
        }
    )
