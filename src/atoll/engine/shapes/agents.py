"""Fills in the shapes of agents and their turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.engine.agent.agents import SentMessage, TurnView
    from atoll.engine.agent.observation import AgentStatus
    from atoll.engine.agent.selection import AvailableAgent
    from atoll.engine.agent.verdicts import TurnVerdict
    from atoll.model.agent import AgentBudget, AgentEvent, ModelUsage
    from atoll.model.shapes import (
        AgentBudgetShape,
        AgentEventShape,
        AgentShape,
        AvailableAgentShape,
        ModelUsageShape,
        SentMessageShape,
        SpawnedShape,
        TranscriptShape,
        TurnShape,
        VerdictShape,
    )
    from atoll.model.state import (
        CapsuleRecord,
        Run,
    )


def model_usage(record: ModelUsage) -> ModelUsageShape:
    return {
        "model": record.model,
        "requests": record.requests,
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
        "cached_tokens": record.cached_tokens,
        "cost_usd": record.cost_usd,
    }


def agent_budget(record: AgentBudget) -> AgentBudgetShape:
    return {
        "time_s": record.time_s,
        "turns": record.turns,
        "tokens": record.tokens,
        "cost_usd": record.cost_usd,
    }


def agent(record: AgentStatus) -> AgentShape:
    """An agent as `agents` shows it."""
    task = record.agent.task
    return {
        "capsule": record.capsule,
        "project": record.project,
        "agent": record.agent.adapter,
        "state": str(record.state),
        "reason": record.reason,
        "since": record.since,
        "task": task.prompt,
        "interactive": task.interactive,
        "turns": record.turns,
        "tokens": record.tokens,
        "cost_usd": record.cost_usd,
        "usage": [model_usage(one) for one in record.usage],
        "budget": agent_budget(task.budget),
        "changed_files": None if record.changed is None else record.changed.files,
        "line": record.line,
        "run": None if record.run is None else record.run.label,
    }


def spawned(record: CapsuleRecord, adapter: str, started: Run | None) -> SpawnedShape:
    return {
        "capsule": record.name,
        "agent": adapter,
        "branch": record.branch,
        "run": None if started is None else started.label,
    }


def available_agent(record: AvailableAgent) -> AvailableAgentShape:
    return {
        "name": record.name,
        "title": record.title,
        "program": record.program,
        "version": record.version,
        "login": record.login,
        "usable": record.is_usable,
        "cure": record.cure or None,
    }


def agent_event(record: AgentEvent) -> AgentEventShape:
    return {
        "kind": str(record.kind),
        "text": record.text,
        "tool": record.tool,
        "call": record.call,
        "is_error": record.is_error,
        "at": record.at,
    }


def verdict(record: TurnVerdict) -> VerdictShape:
    return {
        "state": str(record.state),
        "reason": record.reason,
        "at": record.at,
        "tree": record.tree or None,
        "commit": record.commit or None,
        "checks": [
            {
                "command": one.command,
                "passed": one.passed,
                "exit_code": one.exit_code,
                "run": one.run,
                "output": one.output,
            }
            for one in record.checks
        ],
    }


def turn(record: TurnView, events: list[AgentEvent]) -> TurnShape:
    return {
        "number": record.turn.number,
        "prompt": record.turn.prompt,
        "at": record.turn.at,
        "run": record.turn.run or None,
        "running": record.is_running,
        "verdict": None if record.verdict is None else verdict(record.verdict),
        "events": [agent_event(one) for one in events],
    }


def transcript(
    name: str, adapter: str, turns: list[tuple[TurnView, list[AgentEvent]]]
) -> TranscriptShape:
    return {
        "capsule": name,
        "agent": adapter,
        "turns": [turn(view, events) for view, events in turns],
    }


def sent_message(name: str, record: SentMessage | None, budget: AgentBudget) -> SentMessageShape:
    return {
        "capsule": name,
        "turn": None if record is None or record.turn is None else record.turn.number,
        "run": None if record is None or record.run is None else record.run.label,
        "typed": record is not None and record.is_typed,
        "budget": agent_budget(budget),
    }
