"""What an agent did, as text and as a page: nothing of it reaches a terminal or a browser raw."""

from __future__ import annotations

import pytest

from atoll.cli.agent_events import render_event
from atoll.cli.agents import render_cost, render_count
from atoll.cli.transcript_html import render_html
from atoll.engine import shapes
from atoll.engine.agent.agents import TurnView
from atoll.engine.agent.verdicts import CheckResult, TurnVerdict
from atoll.model.agent import AgentEvent, AgentEventKind, AgentState, AgentTurn

HOSTILE = '\x1b[2J\x1b]0;title\x07\x9b31m<script>alert(1)</script>\u202e&"'


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.parametrize("kind", AgentEventKind)
def test_no_control_character_is_printed(kind):
    event = AgentEvent(kind, f"{HOSTILE}\n{HOSTILE}", tool=HOSTILE, is_error=True)
    text = render_event(event)
    assert all(c.isprintable() or c == "\n" for c in text), ascii(text)
    assert "title" not in text
    assert text == "" or text.endswith("\n")


def test_kinds_are_told_apart():
    def shown(kind, text="one\ntwo", **rest):
        return render_event(AgentEvent(kind, text, **rest))

    assert shown(AgentEventKind.PROMPT) == "> one\n> two\n"
    assert shown(AgentEventKind.MESSAGE) == "one\ntwo\n"
    assert shown(AgentEventKind.TOOL_CALL, "ls", tool="shell") == "* shell ls\n"
    assert shown(AgentEventKind.TOOL_CALL, tool="edit") == "* edit\n  | one\n  | two\n"
    assert shown(AgentEventKind.END, "no", is_error=True) == "= the agent reports an error: no\n"
    assert shown(AgentEventKind.START) == ""
    assert shown(AgentEventKind.TOOL_RESULT) == "  | one\n  | two\n"
    assert shown(AgentEventKind.TOOL_RESULT, "no", is_error=True) == "  ! failed\n  ! no\n"
    assert shown(AgentEventKind.TOOL_RESULT, "", is_error=True) == "  ! failed\n"
    long = shown(AgentEventKind.TOOL_RESULT, "x\n" * 100 + "y")
    assert long.endswith("  | … 77 more lines\n")


def test_page_escapes_everything():
    turn = AgentTurn(1, 1, 1, HOSTILE, 5.0)
    verdict = TurnVerdict(
        AgentState.FAILED, HOSTILE, 6.0, checks=(CheckResult(HOSTILE, False, 1, 2),)
    )
    view = TurnView(turn, verdict, is_running=False)
    events = [AgentEvent(kind, HOSTILE, tool=HOSTILE) for kind in AgentEventKind]
    page = render_html(shapes.transcript(HOSTILE, HOSTILE, [(view, events)]))
    assert "<script" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page


def test_numbers_are_short():
    assert [render_count(n) for n in (0, 999, 1500, 2_500_000)] == ["0", "999", "1.5k", "2.5M"]
    assert render_cost(None, has_usage=False) == "-"
    assert render_cost(None, has_usage=True) == "?"
    assert render_cost(1.234, has_usage=True) == "$1.23"
