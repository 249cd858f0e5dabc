"""Agents as records: what was asked of one, what it has used, and the state that facts show."""

from __future__ import annotations

import re
import time
from enum import StrEnum
from typing import NamedTuple


class AgentState(StrEnum):
    """Decided from facts by `atoll.engine.agent.status`, never from what an agent says."""

    STARTING = "starting"
    """The process runs and has not sent a model request or an event yet."""
    WORKING = "working"
    WAITING = "waiting"
    """For a person, or for a quota to be reset."""
    IDLE = "idle"
    """It runs, and for a while there was no output, model traffic or CPU use."""
    FINISHED = "finished"
    """The turn ended well: by its events, on a recorded tree, with all checks passed."""
    FAILED = "failed"
    OVER_BUDGET = "over-budget"
    LOST = "lost"
    """The process disappeared without a recorded end."""


VAULT_LOCKED = "the vault is locked: atoll secret unlock"
"""The reason of `waiting` when a turn has ended and the key of the vault is needed to record it."""


def render_quota(until: float) -> str:
    """The reason of `waiting` until a quota is reset, in the local time."""
    moment = time.localtime(until)
    is_today = moment[:3] == time.localtime()[:3]
    shown = time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M", moment)
    return f"the quota of its model is used up until {shown}"


WANTS_PERSON = frozenset(
    {AgentState.WAITING, AgentState.FAILED, AgentState.OVER_BUDGET, AgentState.LOST}
)
"""The states in which an agent does not go on by itself, or a person has to know why it ended."""
_NUMBERS = re.compile(r"\S*\d\S*(?:\s+\S*\d\S*)*")


def is_news(before: tuple[AgentState, str], after: tuple[AgentState, str]) -> bool:
    """Whether the owner has to hear of a change of state and reason.

    A new reason counts in a state that wants a person: one that waited for a quota and now waits
    for a message is news. A reason that differs in its numbers alone is not.
    """
    if before[0] is not after[0]:
        return True
    reasons = [_NUMBERS.sub("#", reason) for _, reason in (before, after)]
    return after[0] in WANTS_PERSON and reasons[0] != reasons[1]


class AgentBudget(NamedTuple):
    """What an agent may use in all its turns; None: unlimited."""

    time_s: float | None = None
    turns: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None


class AgentSpec(NamedTuple):
    """What `spawn` is asked for."""

    agent: str | None = None
    """Its name, or `script:FILE`; None: the only one that is installed, or the default."""
    prompt: str | bytes = ""
    command: tuple[str, ...] = ()
    """The command line of the agent `command`; `{prompt}` in a word is replaced."""
    name: str | None = None
    """Of the new capsule; None: made from the prompt."""
    inside: str | None = None
    """An existing capsule to start it in."""
    number: int = 1
    """Of capsules with the same task."""
    is_interactive: bool = False
    model: str = ""
    effort: str = ""
    checks: tuple[str, ...] = ()
    budget: tuple[str, ...] = ()
    timeout_s: float | None = None
    commits: bool = True
    rows: int = 24
    cols: int = 80


class AgentTask(NamedTuple):
    """What `spawn` was asked for; stored as JSON."""

    prompt: str
    model: str = ""
    effort: str = ""
    interactive: bool = False
    checks: tuple[str, ...] = ()
    """Shell commands that must pass on the tree before the agent counts as finished."""
    budget: AgentBudget = AgentBudget()
    command: tuple[str, ...] = ()
    """The command line of the agent `command`."""
    commits: bool = True
    """Whether uncommitted work is committed after each turn."""
    timeout_s: float | None = None
    """How long a turn may take; None: as long as the capsule's runs."""


class AgentRecord(NamedTuple):
    """The agent of a capsule. A capsule has at most one."""

    capsule_id: int
    adapter: str
    task: AgentTask
    state: AgentState
    """As it was last recorded; `status` decides it anew from facts."""
    reason: str
    since: float
    created_at: float
    is_damaged: bool = False
    """Whether its row cannot be read; then only the capsule is known."""


class AgentTurn(NamedTuple):
    """One message to an agent, and the run that answers it. An interactive agent answers several
    messages in one run.
    """

    capsule_id: int
    number: int
    run: int
    """The number of the capsule's run; 0 when it belongs to the capsule that this one was forked
    from, or was never started.
    """
    prompt: str
    at: float
    verdict: str = ""
    """JSON of what was observed at its end: tree, check results, last event; empty before."""
    is_screen: bool = False
    """Whether it was answered on the agent's own screen."""
    cut_at: float | None = None
    """The moment to which its capsule has returned, or from which it was forked, when the turn was
    under way then: what came later is not part of the conversation.
    """


class ModelUsage(NamedTuple):
    """What a capsule has used of one model, counted by the broker."""

    model: str
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Input tokens read from the provider's cache; part of `input_tokens`."""
    cost_usd: float | None = None
    """None when the price of the model is unknown."""
    uncounted: int = 0
    """Requests whose answer did not say how many tokens it took."""


class AgentEventKind(StrEnum):
    """What an agent's own event stream reports, in one vocabulary for all agents."""

    START = "start"
    PROMPT = "prompt"
    MESSAGE = "message"
    THINKING = "thinking"
    TOOL_CALL = "tool-call"
    TOOL_RESULT = "tool-result"
    NOTICE = "notice"
    """A retry, a warning, anything else worth one line."""
    ERROR = "error"
    END = "end"
    """The turn is over; `is_error` says whether the agent reports a failure."""


class AgentEvent(NamedTuple):
    """One event of a turn, as the agent reports it: shown to people, never trusted as a verdict."""

    kind: AgentEventKind
    text: str = ""
    tool: str = ""
    call: str = ""
    """Links a result to its call."""
    is_error: bool = False
    usage: tuple[ModelUsage, ...] = ()
    """As the agent counts it; used only where no broker has counted."""
    at: float | None = None


class ModelTraffic(NamedTuple):
    """What the broker saw last of a capsule's requests to models."""

    in_flight: int = 0
    last_at: float | None = None
    """When the last request or response byte passed."""
    last_status: int | None = None
    trouble: str = ""
    """Why the last request got no good answer; empty when it did."""
    paused_until: float | None = None
    """A quota is used up until then."""
    held_s: float = 0.0
    """How long requests were held by budgets and quotas."""
    held_since: float | None = None
    """Since when some are."""

    def held_at(self, now: float) -> float:
        """How long requests were held until `now`."""
        return self.held_s + (0.0 if self.held_since is None else max(0.0, now - self.held_since))

    def at_rest(self, now: float) -> ModelTraffic:
        """Without requests under way."""
        return self._replace(in_flight=0, held_s=self.held_at(now), held_since=None)
