"""What a turn has come to: never by its exit code alone."""

from __future__ import annotations

import pytest

from atoll.engine.agent.verdicts import TurnCheck, TurnEnd, TurnVerdict, judge, parse_verdict
from atoll.model.agent import AgentState

GOOD = TurnEnd(
    outcome="exited", exit_code=0, needs_end=True, end="good", end_text="", last_error="",
    trouble="", used_login=True, is_screen=False, tree="4b825dc", tree_trouble="", checks=(),
)  # fmt: skip
PASSED = TurnCheck("make test", passed=True, exit_code=0, run=2)
BROKEN = TurnCheck("make lint", passed=False, exit_code=2, run=3)
FAILED = AgentState.FAILED


@pytest.mark.parametrize(
    ("facts", "state", "reason"),
    [
        (GOOD, AgentState.FINISHED, ""),
        (GOOD._replace(checks=(PASSED,)), AgentState.FINISHED, "1 check passed"),
        (
            GOOD._replace(checks=(PASSED, BROKEN)),
            FAILED,
            "1 of 2 checks failed: `make lint` (2)",
        ),
        (
            GOOD._replace(checks=(BROKEN._replace(run=0, output="the vault is locked"),)),
            FAILED,
            "1 of 1 checks failed: `make lint` (not run: the vault is locked)",
        ),
        # Several agents exit with 0 when the model refuses them or the stream is cut.
        (
            GOOD._replace(end="", last_error="API Error: 401"),
            FAILED,
            "its output ended before its work (code 0): API Error: 401",
        ),
        (
            GOOD._replace(end="error", end_text="Invalid API key"),
            FAILED,
            "it reported: Invalid API key",
        ),
        (GOOD._replace(end="error"), FAILED, "it reported an error"),
        (GOOD._replace(trouble="401: claude auth login"), FAILED, "401: claude auth login"),
        (
            GOOD._replace(end="error", end_text="x", trouble="401: claude auth login"),
            FAILED,
            "401: claude auth login",
        ),
        # And some exit with another code after a good end.
        (GOOD._replace(exit_code=1), AgentState.FINISHED, ""),
        (GOOD._replace(outcome="timeout"), FAILED, "it was ended by its time limit"),
        (GOOD._replace(outcome="stopped"), FAILED, "it was stopped"),
        (GOOD._replace(outcome="oom"), FAILED, "it ran out of memory"),
        (
            GOOD._replace(outcome="not-started", message="`nosuch`: command not found"),
            FAILED,
            "its program could not be started: `nosuch`: command not found",
        ),
        (GOOD._replace(outcome="lost"), AgentState.LOST, "its process disappeared"),
        (
            GOOD._replace(tree="", tree_trouble="the workspace is not on its branch"),
            FAILED,
            "its work could not be recorded: the workspace is not on its branch",
        ),
        # Text says nothing of its end.
        (GOOD._replace(needs_end=False, end=""), AgentState.FINISHED, ""),
        (GOOD._replace(needs_end=False, end="", used_login=None), AgentState.FINISHED, ""),
        (
            GOOD._replace(needs_end=False, end="", used_login=False, last_error="no module"),
            FAILED,
            "it sent no request with its login (code 0): no module",
        ),
        (
            GOOD._replace(needs_end=False, end="", exit_code=3, last_error="boom"),
            FAILED,
            "it ended with code 3: boom",
        ),
        (GOOD._replace(end="", is_screen=True), AgentState.FINISHED, "its screen was closed"),
        (
            GOOD._replace(end="", is_screen=True, outcome="stopped", exit_code=None),
            AgentState.FINISHED,
            "its screen was closed",
        ),
        (GOOD._replace(end="", is_screen=True, exit_code=1), FAILED, "it ended with code 1"),
        (
            GOOD._replace(outcome="signalled", exit_code=None),
            FAILED,
            "it was ended (signalled)",
        ),
    ],
)
def test_judgement(facts: TurnEnd, state: AgentState, reason: str) -> None:
    assert judge(facts) == (state, reason)


def test_verdict_survives_storage() -> None:
    verdict = TurnVerdict(FAILED, "x", 3.0, tree="t", commit="c", end="good", events=4,
                      outcome="exited", exit_code=0, checks=(PASSED, BROKEN))  # fmt: skip
    assert parse_verdict(verdict.encode()) == verdict
    assert parse_verdict("") is None
    damaged = verdict.encode().replace('"at": 3.0', '"at": "x"')
    for text in ('{"state": "failed"}', damaged, "[]", "{", '"x"'):
        with pytest.raises(ValueError):  # noqa: PT011 - of the parser, too
            parse_verdict(text)
