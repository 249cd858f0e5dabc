"""Heads of HTTP/2 requests, and what could be hidden in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.daemon.broker.http2_head import parse_request
from atoll.drivers.network.http1 import Framing, HttpError

PSEUDO = ((b":method", b"POST"), (b":scheme", b"https"), (b":path", b"/x?y"),
          (b":authority", b"api.example.org"))  # fmt: skip


def head(*more: tuple[bytes, bytes], **changed: bytes) -> list[tuple[bytes, bytes]]:
    return [(n, changed.get(n[1:].decode(), v)) for n, v in PSEUDO] + list(more)


def test_plain_request():
    request = parse_request(
        head((b"x", b"1"), (b"cookie", b"a=1"), (b"cookie", b"b=2")), is_ended=True
    )
    assert (request.method, request.target, request.framing) == ("POST", b"/x?y", Framing())
    assert request.values(b"host") == [b"api.example.org"]
    assert request.values(b"cookie") == [b"a=1; b=2"]


def test_bodies():
    assert parse_request(head(), is_ended=False).framing == Framing(None, chunked=True)
    length = (b"content-length", b"5")
    assert parse_request(head(length), is_ended=False).framing == Framing(5)
    assert parse_request(head((b"content-length", b"0")), is_ended=True).framing == Framing()


@pytest.mark.parametrize(
    "headers",
    [
        head(method=b"GET /y HTTP/1.1\r\nX:"),
        head(method=b"GET /y"),
        head(path=b"/x HTTP/1.1\r\nX: y"),
        head(path=b"/x y"),
        head(path=b""),
        head(scheme=b"http"),
        head(authority=b"a\r\nX: y"),
        head((b"x", b"a\r\nb: c")),
        head((b"x", b"a\nb")),
        head((b"x", b"a\0b")),
        head((b"x: a", b"b")),
        head((b"x\r\ny", b"b")),
        head((b"X", b"b")),
        head((b"", b"b")),
        head((b"host", b"other.example")),
        head((b":path", b"/y")),
        head((b":protocol", b"websocket")),
        head((b"transfer-encoding", b"chunked")),
        head((b"connection", b"x")),
        head((b"upgrade", b"websocket")),
        head((b"content-length", b"5")),
        head((b"content-length", b"0"), (b"content-length", b"00")),
        head()[:3],
        head()[1:],
    ],
)
def test_trick_is_refused(headers):
    with pytest.raises(HttpError):
        parse_request(headers, is_ended=True)


@given(st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=12)), max_size=4))
def test_nothing_but_what_was_said(extra):
    try:
        request = parse_request(head(*extra), is_ended=True)
    except HttpError:
        return
    known = {b"host", b"cookie", *(name for name, _ in extra)}
    assert {name for name, _ in request.fields} <= known
    assert request.target == b"/x?y"
