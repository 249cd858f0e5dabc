"""What an agent did, as text and as a page: nothing of it reaches a terminal or a browser raw."""

from __future__ import annotations

import pytest

from atoll.cli.agent_events import render_event
from atoll.cli.agents import render_cost, render_count
from atoll.cli.transcript_html import render_html
from atoll.engine import shapes
from atoll.engine.agent.agents import TurnView
from atoll.engine.agent.verdicts import TurnCheck, TurnVerdict
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
        AgentState.FAILED, HOSTILE, 6.0, checks=(TurnCheck(HOSTILE, False, 1, 2),)
    )
    view = TurnView(turn, verdict, is_running=False)
    events = [AgentEvent(kind, HOSTILE, tool=HOSTILE) for kind in AgentEventKind]
    page = render_html(shapes.transcript(HOSTILE, HOSTILE, [(view, events)]))
    assert "<script" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page


def page_of(events, **about):
    view = TurnView(AgentTurn(1, 1, 1, "x", 5.0), None, is_running=False)
    data = shapes.transcript("fix-auth", "claude", [(view, events)])
    known = {"project": "shop", "agent": "claude", "state": "finished", "usage": [], "tokens": 0}
    return render_html(data, {**known, "cost_usd": None, **about})  # type: ignore[arg-type]


def test_page_says_whose_conversation_it_is_and_what_it_cost():
    page = page_of([], usage=[{"model": "opus<"}], tokens=123_456, cost_usd=1.234)
    assert "<title>fix-auth · claude · shop</title>" in page
    for fact in ("opus&lt;", "123,456", "$1.23", "finished"):
        assert f"<dd>{fact}</dd>" in page
    assert "<dd>unknown</dd>" in page_of([], usage=[{"model": "m"}])


def test_page_shows_what_there_is_to_see():
    text = "It is done.\n\nAll of it."
    page = page_of([
        AgentEvent(AgentEventKind.START), AgentEvent(AgentEventKind.MESSAGE, text),
        AgentEvent(AgentEventKind.TOOL_CALL, "ls", tool="shell"),
        AgentEvent(AgentEventKind.TOOL_RESULT), AgentEvent(AgentEventKind.END, text),
    ])  # fmt: skip
    assert page.count("<article") == 2
    assert page.count("It is done.") == 1
    assert '<span class="label"><code>shell</code></span>' in page
    assert "tool-call</" not in page
    failed = page_of([
        AgentEvent(AgentEventKind.TOOL_RESULT, is_error=True),
        AgentEvent(AgentEventKind.END, "no", is_error=True),
    ])  # fmt: skip
    assert ">Failed result<" in failed
    assert ">The agent reports an error<" in failed


def test_page_joins_lines_and_marks_diffs():
    lines = [AgentEvent(AgentEventKind.MESSAGE, f"line {number}") for number in range(3)]
    page = page_of(
        [*lines, AgentEvent(AgentEventKind.TOOL_CALL, "@@ -1 +1 @@\n-<a>\n+b", tool="e")]
    )
    assert "<pre>line 0\nline 1\nline 2</pre>" in page
    assert '<span class="del">-&lt;a&gt;</span>\n<span class="add">+b</span>' in page
    long = page_of([AgentEvent(AgentEventKind.TOOL_RESULT, "x\n" * 50 + "y")])
    assert "<details><summary>" in long


def test_numbers_are_short():
    assert [render_count(n) for n in (0, 999, 1500, 2_500_000)] == ["0", "999", "1.5k", "2.5M"]
    assert render_cost(None, has_usage=False) == "-"
    assert render_cost(None, has_usage=True) == "?"
    assert render_cost(1.234, has_usage=True) == "$1.23"
