"""The owner's own proxy, as the environment names it."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from atoll.daemon.egress.upstream_proxy import find_upstream
from atoll.model.egress import Destination
from present import present


def test_none():
    assert find_upstream({}) is None
    assert find_upstream({"HTTPS_PROXY": "", "NO_PROXY": "*"}) is None


def test_credentials_are_in_no_text():
    found = present(find_upstream({"https_proxy": "http://us%40er:p%3Aw@proxy.example:3128"}))
    assert (found.host, found.port) == ("proxy.example", 3128)
    assert found.fields == [(b"Proxy-Authorization", b"Basic dXNAZXI6cDp3")]
    assert "dXNA" not in repr(found) + str(found) + f"{found}"


def test_order_and_short_forms():
    found = present(find_upstream({"ALL_PROXY": "http://all:1", "HTTPS_PROXY": "https-one:2"}))
    assert (found.host, found.port, found.fields) == ("https-one", 2, [])
    assert present(find_upstream({"all_proxy": "http://[::1]:3128"})).host == "::1"


@pytest.mark.parametrize("url", ["socks5://a:1", "https://a", "http://", "http://a:x", "http://["])
def test_what_cannot_be_used_is_there_all_the_same(url):
    assert not present(find_upstream({"HTTPS_PROXY": url})).usable


@pytest.mark.parametrize(
    ("entry", "place", "port", "is_exempt"),
    [
        ("*", "a.example", 443, True),
        ("example", "example", 443, True),
        ("a.example", "a.example", 443, True),
        ("a.example", "b.a.example", 443, True),
        (".a.example", "b.a.example", 443, True),
        ("*.a.example", "b.a.example", 443, True),
        ("a.example", "xa.example", 443, False),
        ("a.example:80", "a.example", 443, False),
        ("a.example:443", "a.example", 443, True),
        ("A.Example", "a.example", 443, True),
        ("10.0.0.0/8", "10.1.2.3", 443, True),
        ("10.1.2.3", "10.1.2.3", 443, True),
        ("10.1.2.3:80", "10.1.2.3", 443, False),
        ("[2001:db8::1]:443", "2001:db8::1", 443, True),
        ("2001:db8::/32", "2001:db8::1", 443, True),
        ("2001:db8::/32", "10.1.2.3", 443, False),
        ("10.0.0.0/8", "a.example", 443, False),
        ("", "a.example", 443, False),
    ],
)
def test_exceptions(entry, place, port, is_exempt):
    found = find_upstream({"HTTPS_PROXY": "http://p:1", "no_proxy": f"other.example, {entry} ,"})
    try:
        wanted = Destination(ip_address(place), port)
    except ValueError:
        wanted = Destination(place, port)
    assert present(found).serves(wanted) is not is_exempt
