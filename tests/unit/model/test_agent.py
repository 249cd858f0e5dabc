"""Which changes of an agent's state the owner has to hear of."""

from __future__ import annotations

import pytest

from atoll.model.agent import AgentState, is_news, render_quota

WAITING, WORKING, OVER = AgentState.WAITING, AgentState.WORKING, AgentState.OVER_BUDGET
MESSAGE = "for your next message"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((WORKING, ""), (WAITING, MESSAGE), True),
        ((WAITING, MESSAGE), (WORKING, ""), True),
        ((WAITING, render_quota(1e9)), (WAITING, MESSAGE), True),
        ((WAITING, MESSAGE), (WAITING, MESSAGE), False),
        # Nobody has to do anything about these.
        ((WORKING, ""), (WORKING, "api.example.org answered 529"), False),
        ((AgentState.IDLE, "a"), (AgentState.IDLE, "b"), False),
        # Numbers alone are no news, in whatever unit.
        ((OVER, "2 of 2 turns"), (OVER, "3 of 2 turns"), False),
        ((OVER, "59s of 1m"), (OVER, "1m 5s of 1m"), False),
        ((OVER, "$0.99 of $1.00"), (OVER, "$1,000.20 of $1.00"), False),
        ((OVER, "2 of 2 turns"), (OVER, "900 of 1k tokens"), True),
    ],
)
def test_news(
    before: tuple[AgentState, str], after: tuple[AgentState, str], *, expected: bool
) -> None:
    assert is_news(before, after) is expected
