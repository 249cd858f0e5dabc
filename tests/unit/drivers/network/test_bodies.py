"""Where a body ends, in pieces of every size."""

from __future__ import annotations

import random

import pytest

from atoll.drivers.network.http1 import (
    ChunkedBody,
    Framing,
    HttpError,
    SizedBody,
    UnboundedBody,
    body_of,
)

GOOD = [
    b"0\r\n\r\n",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"5;name=value\r\nhello\r\n1\r\n!\r\n0\r\nTrailer: x\r\n\r\n",
    b"A\r\n0123456789\r\n00\r\n\r\n",
]


@pytest.mark.parametrize("data", GOOD)
@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
def test_chunks_end_where_they_end(data, step):
    body, passed, stream = ChunkedBody(), 0, data + b"GET / HTTP/1.1"
    while not body.is_over:
        passed += body.take(stream[passed : passed + step])
    assert passed == len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"x\r\n", b"\r\n", b"5\nhello\n", b"5\r\nhelloo\r\n", b"5\r\nhello0\r\n", b"-5\r\n",
        b"0x5\r\nhello\r\n", b"5 \r\nhello\r\n", b" 5\r\n", b"5\r\nhello\r0\r\n", b"5\r\nhello\n\n",
        b"1" * 16 + b"\r\n", b"5;" + b"x" * 5000, b"5;\0\r\n", b"0\r\nno trailer\r\n",
        b"0\r\n folded: x\r\n", b"0\r\n" + b"A: b\r\n" * 100, b"1_0\r\n",
    ],
)  # fmt: skip
def test_doubtful_chunks_are_refused(data):
    with pytest.raises(HttpError):
        ChunkedBody().take(data)


def test_sized_and_endless():
    body = SizedBody(5)
    assert (body.take(b"abc"), body.is_over) == (3, False)
    assert (body.take(b"defg"), body.is_over) == (2, True)
    assert body_of(Framing()).is_over
    endless = body_of(Framing(None))
    assert isinstance(endless, UnboundedBody)
    assert (endless.take(b"abc"), endless.is_over) == (3, False)


def test_random_bytes_raise_nothing_else():
    chance = random.Random(7)
    for _ in range(20_000):
        data = bytearray(chance.choice(GOOD))
        at = chance.randrange(len(data))
        data[at : at + chance.randrange(2)] = chance.randbytes(chance.randrange(3))
        body = ChunkedBody()
        try:
            assert 0 <= body.take(bytes(data)) <= len(data)
        except HttpError:
            continue
