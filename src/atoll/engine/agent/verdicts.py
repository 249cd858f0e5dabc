"""What was observed when a turn ended, as it is stored with the turn."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from atoll.model.agent import AgentState


class TurnCheck(NamedTuple):
    """A command of `spawn --check`, as it ran inside after the turn."""

    command: str
    passed: bool
    exit_code: int
    run: int
    """The number of its run in the capsule; 0 when it could not be run."""
    output: str = ""
    """The end of what it printed, when it failed."""


class TurnVerdict(NamedTuple):
    """`state` and `reason` follow from the other fields; nothing is what an agent claims but `end`,
    which never suffices.
    """

    state: AgentState
    reason: str
    at: float
    tree: str = ""
    """The git tree that the turn left; empty when it could not be recorded."""
    commit: str = ""
    end: str = ""
    """`good`, `error`, or empty when the agent reported no end."""
    events: int = 0
    """How many events its output had."""
    outcome: str = ""
    """Why its process ended."""
    exit_code: int | None = None
    checks: tuple[TurnCheck, ...] = ()
    held: str = ""
    """What held its model requests when it ended: `budget`, `quota` or nothing. Such a turn goes on
    as a new one, when nothing holds it any more.
    """

    def encode(self) -> str:
        return json.dumps({**self._asdict(), "checks": [c._asdict() for c in self.checks]})


def parse_verdict(text: str) -> TurnVerdict | None:
    """None for a turn that has not ended; raises ValueError for a damaged record."""
    if not text:
        return None
    try:
        raw: dict[str, Any] = json.loads(text)
        checks = tuple(TurnCheck(**check) for check in raw.pop("checks"))
        fixed = {"state": AgentState(raw["state"]), "at": float(raw["at"]), "checks": checks}
        return TurnVerdict(**{**raw, **fixed})
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"damaged verdict: {error}") from error


class TurnEnd(NamedTuple):
    """The facts about the end of a turn, before they are judged."""

    outcome: str
    """The `Reason` of its run: `exited`, `timeout`, `stopped`, `lost` and so on."""
    exit_code: int | None
    needs_end: bool
    """Whether the agent's output has to contain its end."""
    end: str
    """As in `TurnVerdict`."""
    end_text: str
    """What the agent said at its end."""
    last_error: str
    """The last error in its output."""
    trouble: str
    """Why its last model request got no good answer."""
    used_login: bool | None
    """Whether a request of the turn has used its login; None for an agent without one."""
    is_screen: bool
    """Whether it had its own screen."""
    tree: str
    tree_trouble: str
    """Why there is no tree."""
    checks: tuple[TurnCheck, ...]
    message: str = ""
    """What is known about the end of its run, such as why it was not started."""


def judge(facts: TurnEnd) -> tuple[AgentState, str]:
    """The state after a turn, with the reason. Pure.

    An exit code is never the verdict: several agents exit with 0 when the model refuses them.
    """
    if facts.outcome == "lost":
        return AgentState.LOST, "its process disappeared"
    failure = _failure(facts)
    if failure:
        return AgentState.FAILED, failure
    if not facts.checks:
        return AgentState.FINISHED, "its screen was closed" if facts.is_screen else ""
    count = len(facts.checks)
    return AgentState.FINISHED, f"{count} {'check' if count == 1 else 'checks'} passed"


def _failure(facts: TurnEnd) -> str:
    ended = _ended_badly(facts)
    if ended:
        return ended
    if not facts.tree:
        return f"its work could not be recorded: {facts.tree_trouble or 'there is no tree'}"
    failed = [check for check in facts.checks if not check.passed]
    if failed:
        codes = ", ".join(
            f"`{check.command}` ({check.exit_code if check.run else f'not run: {check.output}'})"
            for check in failed
        )
        return f"{len(failed)} of {len(facts.checks)} checks failed: {codes}"
    return ""


_OUTCOMES = {
    "stopped": "it was stopped",
    "timeout": "it was ended by its time limit",
    "hangup": "its terminal was closed",
    "output": "it was ended by its output limit",
    "oom": "it ran out of memory",
    "pids": "it was ended by its limit of processes",
    "disk": "it was ended by its disk limit",
    "idle": "it was ended by its idle limit",
    "no-walls": "its sandbox could not be created",
    "not-started": "its program could not be started",
}


def _start_error(facts: TurnEnd) -> str:
    is_start = facts.outcome in ("not-started", "no-walls")
    return f": {facts.message}" if is_start and facts.message else ""


def _ended_badly(facts: TurnEnd) -> str:
    """Why a turn cannot have finished, whatever it left."""
    said = f": {facts.last_error}" if facts.last_error else ""
    code = "a signal" if facts.exit_code is None else f"code {facts.exit_code}"
    is_cut = not facts.end and facts.needs_end and not facts.is_screen
    is_bad_exit = not facts.end and facts.exit_code != 0
    text = facts.end_text or facts.last_error
    reported = facts.trouble or (f"it reported: {text}" if text else "it reported an error")
    if facts.is_screen and facts.outcome == "stopped":
        # A person has closed it.
        return ""
    found = (
        (facts.outcome in _OUTCOMES, _OUTCOMES.get(facts.outcome, "") + _start_error(facts)),
        (facts.end == "error", reported),
        (bool(facts.trouble) and not facts.is_screen, facts.trouble),
        (facts.outcome != "exited", f"it was ended ({facts.outcome}){said}"),
        (facts.used_login is False and not facts.end and not facts.is_screen,
         f"it sent no request with its login ({code}){said}"),
        (is_cut, f"its output ended before its work ({code}){said}"),
        (is_bad_exit, f"it ended with {code}{said}"),
    )  # fmt: skip
    return next((reason for applies, reason in found if applies), "")
