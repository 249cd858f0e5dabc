"""The JSON shapes of agents and their turns."""

from __future__ import annotations

from typing import TypedDict


class ModelUsageShape(TypedDict):
    model: str
    requests: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_usd: float | None


class AgentBudgetShape(TypedDict):
    time_s: float | None
    turns: int | None
    tokens: int | None
    cost_usd: float | None


class AgentShape(TypedDict):
    """An agent as it was observed."""

    capsule: str
    project: str
    agent: str
    state: str
    reason: str
    since: float
    task: str
    interactive: bool
    turns: int
    tokens: int
    cost_usd: float | None
    usage: list[ModelUsageShape]
    budget: AgentBudgetShape
    changed_files: int | None
    line: str
    run: str | None


class SpawnedShape(TypedDict):
    capsule: str
    agent: str
    branch: str | None
    run: str | None


class AvailableAgentShape(TypedDict):
    name: str
    title: str
    program: str | None
    version: str
    login: str
    usable: bool
    cure: str | None


class AgentEventShape(TypedDict):
    kind: str
    text: str
    tool: str
    call: str
    is_error: bool
    at: float | None


class CheckShape(TypedDict):
    command: str
    passed: bool
    exit_code: int
    run: int
    output: str


class VerdictShape(TypedDict):
    """What was observed at the end of a turn."""

    state: str
    reason: str
    at: float
    tree: str | None
    commit: str | None
    checks: list[CheckShape]


class TurnShape(TypedDict):
    number: int
    prompt: str
    at: float
    run: int | None
    running: bool
    verdict: VerdictShape | None
    events: list[AgentEventShape]


class TranscriptShape(TypedDict):
    capsule: str
    agent: str
    turns: list[TurnShape]


class SentMessageShape(TypedDict):
    capsule: str
    turn: int | None
    run: str | None
    typed: bool
    budget: AgentBudgetShape
