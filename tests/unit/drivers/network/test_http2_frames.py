"""Which frames an HTTP/2 client may send without an end."""

from __future__ import annotations

import pytest

from atoll.drivers.network.http1 import MAX_HEAD_BYTES
from atoll.drivers.network.http2_frames import (
    MOST_FRAMES,
    PREFACE,
    FrameBudget,
    FrameFloodError,
)

DATA, HEADERS, PRIORITY, RESET, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
PADDED = 8


def frame(kind, payload=b"", *, flags=0):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags, 0, 0, 0, 1]) + payload


def fresh():
    budget = FrameBudget(0.0)
    budget.feed(PREFACE, 0.0)
    return budget


@pytest.mark.parametrize(
    "flooded",
    [
        frame(PING, bytes(8)), frame(SETTINGS), frame(PRIORITY, bytes(5)), frame(RESET, bytes(4)),
        frame(WINDOW, bytes(4)), frame(DATA), frame(DATA, bytes(9), flags=PADDED), frame(0xAB),
    ],
)  # fmt: skip
def test_frames_without_content_are_bounded(flooded):
    budget = fresh()
    budget.feed(flooded * MOST_FRAMES, 0.0)
    with pytest.raises(FrameFloodError):
        budget.feed(flooded, 0.0)


def test_frames_in_pieces_are_counted():
    budget = fresh()
    said = frame(PING, bytes(8)) * (MOST_FRAMES + 1)
    for at in range(len(said) - 9):
        budget.feed(said[at : at + 1], 0.0)
    with pytest.raises(FrameFloodError):
        budget.feed(said[-9:], 0.0)


def test_traffic_and_time_earn_frames():
    budget = fresh()
    for turn in range(10):
        budget.feed(frame(PING, bytes(8)) * MOST_FRAMES, 1e6 * turn)
    for _ in range(MOST_FRAMES):
        budget.feed(frame(DATA, b"x") + frame(WINDOW, bytes(4)) * 2, 1e7)
        budget.earn()
        budget.feed(frame(HEADERS, b"x") + frame(RESET, bytes(4)), 1e7)


def test_sent_bytes_earn_windows():
    """Go opens both windows after each 4 KiB that it reads."""
    budget = fresh()
    for _ in range(2 * MOST_FRAMES):
        budget.earn(16 << 10)
        budget.feed(frame(WINDOW, bytes(4)) * 8, 0.0)
    for _ in range(MOST_FRAMES // 8):
        budget.earn(1)
        budget.feed(frame(WINDOW, bytes(4)) * 8, 0.0)
    with pytest.raises(FrameFloodError):
        budget.feed(frame(WINDOW, bytes(4)) * MOST_FRAMES, 0.0)


def test_headers_without_an_end():
    budget = fresh()
    half = frame(CONTINUATION, bytes(MAX_HEAD_BYTES // 2))
    budget.feed(frame(HEADERS, b"x") + half, 0.0)
    with pytest.raises(FrameFloodError):
        budget.feed(half, 0.0)
    # Those of the next request are counted anew.
    fresh().feed((frame(HEADERS, b"x") + half) * 3, 0.0)
