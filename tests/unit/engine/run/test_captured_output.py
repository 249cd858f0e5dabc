"""What is kept of a run's output: the end, within a bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.run.captured_output import Captured


@given(pieces=st.lists(st.binary(max_size=40)), limit=st.integers(0, 100))
def test_the_end_is_kept_and_the_rest_is_counted(pieces, limit):
    captured = Captured(limit)
    for piece in pieces:
        captured.add("out", piece)
    whole = b"".join(pieces)
    kept = captured.content("out")
    assert len(kept) == min(limit, len(whole))
    assert whole.endswith(kept)
    assert captured.dropped_bytes("out") == len(whole) - len(kept)
    assert captured.content("err") == b""


def test_more_can_come_after_a_look():
    captured = Captured(4)
    captured.add("err", b"abc")
    assert captured.content("err") == b"abc"
    captured.add("err", b"def")
    assert (captured.content("err"), captured.dropped_bytes("err")) == (b"cdef", 2)
