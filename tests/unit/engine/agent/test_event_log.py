"""Events from recorded output, in whatever pieces it arrives."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.agent import event_log
from atoll.engine.agent.event_log import read_events, summarize
from atoll.keeper.log import LogEntry
from atoll.model.agent import AgentEventKind

LINES = [
    {"type": "say", "text": "I look"},
    {"type": "tool", "tool": "shell", "text": "ls"},
    {"type": "result", "text": "é.txt"},
    {"type": "done"},
]
STREAM = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in LINES).encode()


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_pieces_do_not_matter(cuts: list[int]) -> None:
    edges = sorted({0, len(STREAM), *cuts})
    pieces = [STREAM[a:b] for a, b in itertools.pairwise(edges)]
    events = list(read_events([LogEntry(5.0, "out", piece) for piece in pieces], "script"))
    assert [event.kind for event in events] == [
        AgentEventKind.MESSAGE,
        AgentEventKind.TOOL_CALL,
        AgentEventKind.TOOL_RESULT,
        AgentEventKind.END,
    ]
    assert events[2].text == "é.txt"
    assert events[0].at == 5.0


def test_end_of_a_stream() -> None:
    found = summarize(read_events([LogEntry(1.0, "out", STREAM)], "script"))
    assert (found.end, found.last_error, found.events) == ("good", "", 4)
    cut = summarize(read_events([LogEntry(1.0, "out", STREAM[:-20])], "script"))
    assert cut.end == ""


def test_standard_error_is_a_notice_and_the_last_error() -> None:
    entries = [LogEntry(1.0, "err", b"boom\n"), LogEntry(1.0, "out", b"text")]
    events = list(read_events(entries, "text"))
    assert [(event.kind, event.tool) for event in events] == [
        (AgentEventKind.NOTICE, "stderr"),
        (AgentEventKind.MESSAGE, ""),
    ]
    found = summarize(events)
    assert (found.last_error, found.events) == ("boom", 1)


def test_repeated_line_of_standard_error_is_one_notice() -> None:
    text = b"YOLO mode\nYOLO mode\nanother\nYOLO mode\n"
    events = list(read_events([LogEntry(1.0, "err", text)], "text"))
    assert [event.text for event in events] == ["YOLO mode", "another", "YOLO mode"]


def test_endless_line_is_skipped() -> None:
    flood = [LogEntry(1.0, "out", b"x" * (1 << 20)) for _ in range(6)]
    after = LogEntry(1.0, "out", b"\n" + STREAM)
    events = list(read_events([*flood, after], "script"))
    assert len(events) == 4
    assert event_log.summarize(events).end == "good"
