"""The table of agents: what it cuts on a terminal, and what it never cuts."""

from __future__ import annotations

import pytest

from atoll.cli import agents
from atoll.cli.frame import Frame
from atoll.cli.output import Output
from atoll.engine.agent.observation import AgentStatus
from atoll.model.agent import AgentRecord, AgentState, AgentTask, ModelUsage

REASON = "the login has expired and could not be renewed: run `claude`, then /login, and tell it"


def status(name, **fields):
    record = AgentRecord(
        1, "claude", AgentTask("Add a test for the parser " * 4), AgentState.FAILED, "", 0.0, 0.0
    )
    known = AgentStatus(
        name, "shop", record, AgentState.FAILED, REASON, 0.0, 3,
        (ModelUsage("m", 1, 123_456, 1, 0, 1234.5),), None, None, "a long last line " * 9,
    )  # fmt: skip
    return known._replace(**fields)


@pytest.fixture
def show(monkeypatch, capsys):
    """`show(found, columns=…)` → the lines on a terminal of this size, or in a pipe."""

    def shown(found, *, columns=None, lines=50, is_repeated=False):
        if columns is not None:
            monkeypatch.setenv("COLUMNS", str(columns))
            monkeypatch.setenv("LINES", str(lines))
            monkeypatch.setenv("NO_COLOR", "1")
            monkeypatch.setattr("sys.stdout.isatty", lambda: True)
            monkeypatch.setattr(agents, "size", lambda: (lines, columns))
        frame = Frame(output=Output(), project=None)
        most = agents._most_rows(frame) if is_repeated else None
        agents._show(frame, found, everything=False, most=most)
        read = capsys.readouterr()
        return read.out + read.err

    return shown


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_names_and_numbers_are_whole(show, columns):
    names = [f"three-tries-at-a-parser-{number}" for number in (1, 2, 3)]
    text = show([status(name) for name in names], columns=columns)
    for name in names:
        assert f"{name} " in text
    assert text.count("$1,234.50") + text.count("$1234.50") == 3
    assert text.count("123.5k") == 3
    # Rows are not wrapped, and the tasks give way.
    assert sum("three-tries" in line for line in text.splitlines()) == 3


def test_a_reason_is_whole_in_a_pipe_and_cut_on_a_terminal(show):
    assert REASON in show([status("x")])
    assert agents.render_state(status("x")) == f"failed: {REASON}"
    assert REASON not in show([status("x")], columns=120)


def test_a_repeated_table_begins_with_the_header(show):
    text = show([status(f"x-{n}") for n in range(40)], columns=120, lines=20, is_repeated=True)
    assert len(text.splitlines()) < 20
    assert "CAPSULE" in text
    assert "x-0 " in text
    assert "… 26 more: atoll agents" in text
    assert "more: atoll" not in show([status("x")], columns=120, lines=20, is_repeated=True)
