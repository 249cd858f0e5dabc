"""What shows that an agent took a message."""

from __future__ import annotations

import pytest

from atoll.engine.agent.terminal_input import Evidence, shows_work

NOTHING = Evidence(is_counted=True, is_command=False, has_asked=False, looks=0)
CASES: dict[str, tuple[Evidence, bool]] = {
    "nothing": (NOTHING, False),
    "a new line in the input box": (NOTHING._replace(looks=2), False),
    "a spinner": (NOTHING._replace(looks=20), True),
    "a model request": (NOTHING._replace(has_asked=True), True),
    "the answer of a command": (NOTHING._replace(is_command=True, looks=1), True),
    "a command without an answer": (NOTHING._replace(is_command=True), False),
    "output without counted requests": (NOTHING._replace(is_counted=False, looks=1), True),
    "no output without counted requests": (NOTHING._replace(is_counted=False), False),
}


@pytest.mark.parametrize("case", CASES)
def test_evidence(case: str) -> None:
    found, is_taken = CASES[case]
    assert shows_work(found) is is_taken
