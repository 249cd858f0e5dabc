"""Heads of HTTP, read strictly; whatever is doubtful is a ValueError and nothing else."""

from __future__ import annotations

import random

import pytest

from atoll.drivers.network import http1
from atoll.drivers.network.http1 import (
    Framing,
    HttpError,
    end_to_end,
    parse_proxy_request,
    parse_response,
    render,
)
from atoll.model.egress import Destination
from present import present


def request(first: str, *fields: str) -> bytes:
    return "\r\n".join([first, *fields, "", ""]).encode("latin-1")


def test_absolute_form():
    found = parse_proxy_request(
        request("GET HTTP://Example.org.:8080/a?b=c HTTP/1.1", "Host: x.org")
    )
    assert found.authority == Destination("example.org", 8080)
    assert (found.path, found.host) == ("/a?b=c", Destination("x.org", 80))
    assert parse_proxy_request(request("GET http://a.org HTTP/1.0")).path == "/"
    assert parse_proxy_request(request("GET http://a.org?x HTTP/1.0")).path == "/?x"


def test_origin_and_authority_form():
    found = parse_proxy_request(request("GET /a HTTP/1.1", "Host: [2001:db8::1]:81"))
    assert (found.authority, present(found.host).text) == (None, "[2001:db8::1]:81")
    found = parse_proxy_request(request("CONNECT a.org:443 HTTP/1.1", "Host: a.org:443"))
    assert (found.authority, found.is_connect) == (Destination("a.org", 443), True)
    assert parse_proxy_request(request("OPTIONS * HTTP/1.1", "Host: a")).path == "*"


def test_framing():
    def framing(*fields):
        return parse_proxy_request(request("POST / HTTP/1.1", "Host: a", *fields)).framing

    assert framing() == Framing(0)
    assert framing("Content-Length: 12") == Framing(12)
    assert framing("transfer-encoding: Chunked") == Framing(None, chunked=True)


HOST = "Host: a.org"


@pytest.mark.parametrize(
    "head",
    [
        request("GET / HTTP/1.1"),
        request("GET / HTTP/1.1", HOST, HOST),
        request("GET / HTTP/1.1", HOST, "host: b.org"),
        request("GET / HTTP/1.1", "Host:"),
        request("GET / HTTP/1.1", "Host: a.org, b.org"),
        request("GET / HTTP/1.1", "Host: a.org:"),
        request("GET / HTTP/1.1", "Host: a.org:0"),
        request("GET / HTTP/1.1", "Host: user@a.org"),
        request("GET / HTTP/1.1", "Host: a.org/b"),
        request("GET / HTTP/1.1", "Host: a.org\0.evil.org"),
        request("GET / HTTP/1.1", "Host: 127.1"),
        request("GET / HTTP/1.1", "Host: b\xfccher.org"),
        request("GET / HTTP/1.1", HOST, " folded"),
        request("GET / HTTP/1.1", HOST, "X: a", "\tfolded"),
        request("GET / HTTP/1.1", " Host: a.org"),
        request("GET / HTTP/1.1", "Host : a.org"),
        request("GET / HTTP/1.1", HOST, "X"),
        request("GET / HTTP/1.1", HOST, ": x"),
        request("GET / HTTP/1.1", HOST, "X: a\nHost: b.org"),
        request("GET / HTTP/1.1", HOST, "X: a\rHost: b.org"),
        request("GET / HTTP/1.1", HOST, "X: \0"),
        request("GET / HTTP/1.1", HOST, "Content-Length: 1", "Content-Length: 1"),
        request("GET / HTTP/1.1", HOST, "Content-Length: 1, 1"),
        request("GET / HTTP/1.1", HOST, "Content-Length: +1"),
        request("GET / HTTP/1.1", HOST, "Content-Length: -1"),
        request("GET / HTTP/1.1", HOST, "Content-Length: 0x1"),
        request("GET / HTTP/1.1", HOST, "Content-Length: "),
        request("GET / HTTP/1.1", HOST, "Content-Length: 1" + "0" * 30),
        request("GET / HTTP/1.1", HOST, "Content-Length: 1", "Transfer-Encoding: chunked"),
        request("GET / HTTP/1.1", HOST, "Transfer-Encoding: gzip, chunked"),
        request("GET / HTTP/1.1", HOST, "Transfer-Encoding: chunked, identity"),
        request("GET / HTTP/1.1", HOST, "Transfer-Encoding: xchunked"),
        request("GET / HTTP/1.1", HOST, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        request("GET / HTTP/1.0", HOST, "Transfer-Encoding: chunked"),
        request("GET / HTTP/2.0", HOST),
        request("GET / HTTP/1.2", HOST),
        request("GET /", HOST),
        request("GET  / HTTP/1.1", HOST),
        request("GET /\thttp HTTP/1.1", HOST),
        request("GET /a b HTTP/1.1", HOST),
        request(" GET / HTTP/1.1", HOST),
        request("GET / HTTP/1.1 ", HOST),
        request("PRI * HTTP/2.0"),
        request("GET * HTTP/1.1", HOST),
        request("GET a.org HTTP/1.1", HOST),
        request("GET /a#b HTTP/1.1", HOST),
        request("GET http://a.org/#b HTTP/1.1", HOST),
        request("GET https://a.org/ HTTP/1.1", HOST),
        request("GET ftp://a.org/ HTTP/1.1", HOST),
        request("GET http://user:pw@a.org/ HTTP/1.1", HOST),
        request("GET http://a.org@evil.org/ HTTP/1.1", HOST),
        request("GET http://a.org\\@evil.org/ HTTP/1.1", HOST),
        request("GET http://a.org%00.evil.org/ HTTP/1.1", HOST),
        request("GET http://a%2eorg/ HTTP/1.1", HOST),
        request("GET http:///x HTTP/1.1", HOST),
        request("GET http://0x7f.1/ HTTP/1.1", HOST),
        request("GET http://[fe80::1%25eth0]/ HTTP/1.1", HOST),
        request("GET http://[::1/ HTTP/1.1", HOST),
        request("GET http://a.org:65536/ HTTP/1.1", HOST),
        request("GET http://a.org:443.evil.org/ HTTP/1.1", HOST),
        request("CONNECT a.org HTTP/1.1", HOST),
        request("CONNECT a.org:0 HTTP/1.1", HOST),
        request("CONNECT http://a.org:443 HTTP/1.1", HOST),
        request("CONNECT user@a.org:443 HTTP/1.1", HOST),
        request("CONNECT a.org:443 HTTP/1.1", HOST, "Content-Length: 5"),
        request("GET / HTTP/1.1", HOST, *["X: y"] * 300),
        request("GET / HTTP/1.1", HOST, "X: " + "y" * 70_000),
        b"GET / HTTP/1.1\nHost: a.org\n\n",
        b"GET / HTTP/1.1\r\nHost: a.org\r\n",
        b"\r\n\r\n",
        b"",
    ],
)
def test_doubtful_requests_are_refused(head):
    with pytest.raises(ValueError, match=r"."):
        parse_proxy_request(head)


@pytest.mark.parametrize(
    ("status", "method", "fields", "framing"),
    [
        (200, "GET", ["Content-Length: 5"], Framing(5)),
        (200, "GET", ["Transfer-Encoding: chunked"], Framing(None, chunked=True)),
        (200, "GET", [], Framing(None)),
        (200, "HEAD", ["Content-Length: 5"], Framing(0)),
        (204, "GET", [], Framing(0)),
        (304, "GET", ["Content-Length: 5"], Framing(0)),
        (101, "GET", [], Framing(0)),
    ],
)
def test_responses(status, method, fields, framing):
    response = parse_response(request(f"HTTP/1.1 {status} Some reason", *fields))
    assert (response.status, response.framing(method)) == (status, framing)


@pytest.mark.parametrize("first", ["HTTP/2 200", "HTTP/1.1 99 x", "HTTP/1.1 2000", "200 OK", ""])
def test_doubtful_responses_are_refused(first):
    with pytest.raises(ValueError, match="status line"):
        parse_response(request(first))


def test_contradicting_response_is_refused():
    response = parse_response(
        request("HTTP/1.1 200", "Content-Length: 5", "Transfer-Encoding: chunked")
    )
    with pytest.raises(HttpError):
        response.framing("GET")


def test_what_is_for_one_hop_stays():
    found = parse_proxy_request(
        request(
            "POST / HTTP/1.1", HOST, "Connection: x-mine, Content-Length, close", "X-Mine: 1",
            "Proxy-Authorization: Basic c2VjcmV0", "Proxy-Connection: keep-alive", "TE: trailers",
            "Keep-Alive: 5", "Content-Length: 3", "X-Other: 2",
        )
    )  # fmt: skip
    left = [name for name, _ in end_to_end(found.fields)]
    assert left == [b"Host", b"Content-Length", b"X-Other"]
    assert not found.keeps_alive


def test_only_web_sockets_are_an_upgrade():
    def upgrade(*fields, minor=1):
        return parse_proxy_request(request(f"GET / HTTP/1.{minor}", HOST, *fields)).upgrade

    assert upgrade("Connection: keep-alive, Upgrade", "Upgrade: WebSocket") == b"websocket"
    assert upgrade("Connection: Upgrade", "Upgrade: h2c") == b""
    assert upgrade("Upgrade: websocket") == b""
    assert upgrade("Connection: Upgrade", "Upgrade: websocket", "Content-Length: 4") == b""
    assert upgrade("Connection: Upgrade", "Upgrade: websocket", minor=0) == b""


def test_what_is_rendered_can_be_read():
    fields = ((b"Host", b"a.org"), (b"X", b"\xfc y"))
    assert parse_proxy_request(render(b"GET / HTTP/1.1", fields)).fields == fields


def test_random_bytes_raise_nothing_else():
    chance = random.Random(5)
    seeds = [
        request("GET http://a.org/x HTTP/1.1", "Host: a.org", "Content-Length: 5"),
        request("CONNECT a.org:443 HTTP/1.1", "Host: a.org:443"),
        request("HTTP/1.1 200 OK", "Transfer-Encoding: chunked"),
    ]
    refused = 0
    for _ in range(20_000):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(data) - 4)
            data[at : at + chance.randrange(2)] = chance.randbytes(chance.randrange(3))
        for parse in (parse_proxy_request, lambda head: parse_response(head).framing("GET")):
            try:
                parse(bytes(data))
            except ValueError:
                refused += 1
    assert 20_000 < refused < 40_000, "each is a request or a response, or neither"


def test_trailers_are_bounded():
    def take(count: int) -> bool:
        body = http1.ChunkedBody()
        body.take(b"0\r\n" + b"X: y\r\n" * count + b"\r\n")
        return body.is_over

    assert take(http1._MAX_TRAILERS)
    with pytest.raises(http1.HttpError):
        take(http1._MAX_TRAILERS + 1)
