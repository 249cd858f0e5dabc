from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.daemon.ports.router import parse_host, parse_site_request
from atoll.drivers.network.http1 import MAX_HEAD_BYTES, Framing, HttpError, body_of

HOST = b"Host: web.x--shop.localhost:7080\r\n"


def head(*lines, request=b"GET / HTTP/1.1", host=HOST):
    return request + b"\r\n" + host + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def test_plain_request():
    found = parse_site_request(head(b"Accept: text/html"))
    assert (found.request.method, found.host) == ("GET", "web.x--shop.localhost:7080")
    assert (found.request.framing, found.is_upgrade) == (Framing(0), False)
    assert found.accept == "text/html"
    assert body_of(found.request.framing).is_over


def test_head_goes_on_as_it_came_with_where_it_came_from():
    data = head(b"x-FORWARDED-for: 6.6.6.6", b"Cookie: a=b; c=\xff", b"X-Odd:   kept  ")
    sent = parse_site_request(data).forwarded()
    assert sent.startswith(b"GET / HTTP/1.1\r\nHost: web.x--shop.localhost:7080\r\n")
    assert b"6.6.6.6" not in sent
    assert b"Cookie: a=b; c=\xff\r\nX-Odd:   kept  \r\n" in sent
    assert sent.endswith(
        b"X-Forwarded-Host: web.x--shop.localhost:7080\r\nX-Forwarded-Proto: http\r\n"
        b"X-Forwarded-For: 127.0.0.1\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (head(request=b"GET /"), 400),
        (head(request=b"GET / HTTP/2.0"), 400),
        (head(request=b"GET  / HTTP/1.1"), 400),
        (head(request=b"CONNECT a.localhost:80 HTTP/1.1"), 405),
        (head(request=b"GET http://other.localhost/ HTTP/1.1"), 400),
        (head(request=b"GET ftp://web.x--shop.localhost:7080/ HTTP/1.1"), 400),
        (head(host=b""), 400),
        (head(HOST.strip()), 400),
        (head(b"No colon"), 400),
        (head(b"Space : before"), 400),
        (head(b" folded: line"), 400),
        (head(b"Bare: \n line"), 400),
        (head(b"Bare: \r line"), 400),
        (head(b"Nul: \0"), 400),
        (head(b"Content-Length: 1", b"Content-Length: 2"), 400),
        (head(b"Content-Length: +1"), 400),
        (head(b"Content-Length: 1, 1"), 400),
        (head(b"Content-Length: -1"), 400),
        (head(b"Content-Length: 1", b"Transfer-Encoding: chunked"), 400),
        (head(b"Transfer-Encoding: gzip, chunked"), 400),
        (head(b"Transfer-Encoding: chunked", request=b"POST / HTTP/1.0"), 400),
    ],
)
def test_what_could_be_understood_in_two_ways_is_refused(data, status):
    with pytest.raises(HttpError) as caught:
        parse_site_request(data)
    assert caught.value.status == status


def test_absolute_form_of_the_same_host():
    request = b"GET http://web.x--shop.localhost:7080/a?b HTTP/1.1"
    assert parse_site_request(head(request=request)).host == "web.x--shop.localhost:7080"


@pytest.mark.parametrize(
    ("lines", "is_upgrade"),
    [
        ((b"Upgrade: websocket", b"Connection: keep-alive, Upgrade"), True),
        ((b"Upgrade: websocket",), False),
        ((b"Connection: upgrade",), False),
    ],
)
def test_upgrade_needs_both_headers(lines, is_upgrade):
    assert parse_site_request(head(*lines)).is_upgrade is is_upgrade


def test_too_long_head():
    with pytest.raises(HttpError) as caught:
        parse_site_request(head(b"X: " + b"x" * MAX_HEAD_BYTES))
    assert caught.value.status == 431


def taken(body, data, cuts):
    """Feeds data in pieces; returns how much was taken in all."""
    count = 0
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        piece = data[start:end]
        step = body.take(piece)
        count += step
        if body.is_over or step < len(piece):
            break
    return count


@given(st.binary(max_size=50), st.lists(st.integers(0, 60), max_size=6))
def test_sized_body_ends_where_it_says(content, cuts):
    body = body_of(parse_site_request(head(b"Content-Length: %d" % len(content))).request.framing)
    data = content + b"GET"
    assert taken(body, data, sorted(min(cut, len(data)) for cut in cuts)) == len(content)
    assert body.is_over


@given(
    st.lists(st.binary(min_size=1, max_size=20), max_size=5),
    st.lists(st.sampled_from([b"", b";x=y", b" ; q"]), min_size=6, max_size=6),
    st.lists(st.integers(0, 300), max_size=8),
)
def test_chunked_body_ends_where_it_says(chunks, extensions, cuts):
    parts = [
        b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk)
        for chunk, extension in zip(chunks, extensions, strict=False)
    ]
    content = b"".join(parts) + b"0\r\nTrailer: yes\r\n\r\n"
    body = body_of(parse_site_request(head(b"Transfer-Encoding: Chunked")).request.framing)
    data = content + b"GET"
    assert taken(body, data, sorted(min(cut, len(data)) for cut in cuts)) == len(content)
    assert body.is_over


@pytest.mark.parametrize(
    "data",
    [
        b"zz\r\n",
        b"-1\r\n",
        b"1\n",
        b"1\r\nab\r\n",
        b"0x1\r\n",
        b"1" * 20 + b"\r\n",
        b"1;" + b"x" * 5000,
        b"0\r\n" + b"a: b" * 2000,
        b"0\r\n" + b"a: b\r\n" * 2000,
        b"0\r\nno trailer\r\n",
    ],
)
def test_bad_chunks_are_refused(data):
    body = body_of(parse_site_request(head(b"Transfer-Encoding: chunked")).request.framing)
    with pytest.raises(HttpError):
        body.take(data)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("web.x--shop.localhost:7080", ("web", "x--shop")),
        ("WEB.X--shop.LOCALHOST.", ("web", "x--shop")),
        ("x--shop.localhost", ("x--shop",)),
        ("localhost:7080", ()),
        ("evil.org", None),
        ("localhost.evil.org", None),
        ("xlocalhost", None),
        ("127.0.0.1:7080", None),
        ("web..localhost", None),
        ("web.localhost:", None),
        ("web.localhost:80x", None),
        ("a@web.localhost", None),
        ("<b>.localhost", None),
        ("", None),
    ],
)
def test_hosts(text, labels):
    assert parse_host(text) == labels
