"""Server-sent events out of bytes, in any portions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.drivers.network.event_stream import EventStream
from portions import split

TEXTS = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=40)


@given(
    st.lists(st.tuples(TEXTS, st.sampled_from(["\n", "\r\n", "\r"])), max_size=6),
    st.lists(st.integers(0, 1000), max_size=10),
)
def test_events_come_back_however_they_are_cut(events, cuts):
    data = "".join(f"event: x{end}data: {text}{end}{end}" for text, end in events).encode()
    stream = EventStream(1000)
    found = [event for part in split(data, cuts) for event in stream.feed(part)]
    assert [event.decode() for event in found + stream.end()] == [text for text, _ in events]


def test_lines_of_one_event_are_joined():
    stream = EventStream(100)
    assert stream.feed(b": a comment\nid: 7\ndata: one\ndata:two\ndata\n\n\n") == [b"one\ntwo"]


def test_the_last_event_may_lack_its_empty_line():
    stream = EventStream(100)
    assert (stream.feed(b"data: one"), stream.end(), stream.end()) == ([], [b"one"], [])


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize(
    "long", [b"data: " + b"x" * 21, b"data: " + b"x" * 11 + b"\ndata: 123456789"]
)
def test_a_long_event_is_left_out(step, long):
    data = b"data: one\n\n" + long + b"\n\ndata: " + b"y" * 20 + b"\n\n"
    stream = EventStream(20)
    parts = [data[at : at + step] for at in range(0, len(data), step)]
    assert [e for part in parts for e in stream.feed(part)] == [b"one", b"y" * 20]
