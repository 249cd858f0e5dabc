"""WebSocket messages out of bytes, in any portions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.drivers.network import websocket
from atoll.drivers.network.websocket import (
    BINARY,
    CLOSE,
    PING,
    TEXT,
    Message,
    MessageReader,
    WebSocketError,
    frame,
)
from portions import split

PAYLOADS = st.one_of(st.binary(max_size=300), st.integers(125, 70_000).map(lambda n: b"x" * n))
MESSAGES = st.lists(st.tuples(st.sampled_from([TEXT, BINARY]), PAYLOADS), max_size=5)


@given(MESSAGES, st.lists(st.integers(0, 1 << 20), max_size=20), st.sampled_from([b"", b"mask"]))
def test_messages_come_back_however_they_are_cut(messages, cuts, mask):
    data = b"".join(frame(opcode, payload, mask=mask) for opcode, payload in messages)
    reader = MessageReader(1 << 20)
    found = [message for part in split(data, cuts) for message in reader.feed(part)]
    assert found == [Message(opcode, payload) for opcode, payload in messages]


def fragment(opcode: int, payload: bytes, *, final: bool) -> bytes:
    data = frame(opcode, payload)
    return data if final else bytes([data[0] & 0x7F]) + data[1:]


def test_fragments_are_joined_around_control_frames():
    data = (
        fragment(TEXT, b"one ", final=False)
        + frame(PING, b"still there?")
        + fragment(0, b"two ", final=False)
        + fragment(0, b"three", final=True)
    )
    assert MessageReader(100).feed(data) == [
        Message(PING, b"still there?"),
        Message(TEXT, b"one two three"),
    ]


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_of_a_long_message_the_beginning_is_kept(step):
    data = frame(TEXT, b"0123456789" * 100) + frame(TEXT, b"short")
    reader = MessageReader(16)
    parts = [data[at : at + step] for at in range(0, len(data), step)]
    found = [message for part in parts for message in reader.feed(part)]
    assert found == [Message(TEXT, b"0123456789012345", is_whole=False), Message(TEXT, b"short")]


@pytest.mark.parametrize(
    "data",
    [
        bytes([0xC1, 0]),  # compressed
        bytes([0x83, 0]),  # an unknown opcode
        bytes([0x80, 0]),  # a continuation of nothing
        bytes([0x01, 0, 0x81, 0]),  # a message inside another
        bytes([0x09, 0]),  # a control frame in fragments
        bytes([0x89, 126, 0, 200]),  # a long control frame
        bytes([0x82, 127]) + b"\xff" * 8,  # a negative length
    ],
)
def test_what_is_no_websocket_is_refused(data):
    with pytest.raises(WebSocketError):
        MessageReader(100).feed(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    try:
        found = MessageReader(50).feed(data)
    except WebSocketError:
        return
    assert all(len(message.data) <= 125 for message in found)


def test_handshake_and_close():
    # The example of RFC 6455.
    accept = websocket.accept_key(b"dGhlIHNhbXBsZSBub25jZQ==")
    assert accept == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert MessageReader(10).feed(frame(CLOSE, b"\x03\xe8")) == [Message(CLOSE, b"\x03\xe8")]
