"""SOCKS5 in pieces; NUL bytes and short spellings in names lead nowhere."""

from __future__ import annotations

import random
import struct
from ipaddress import ip_address

import pytest

from atoll.drivers.network import socks
from atoll.model.egress import Destination


def asking(name: bytes, port: int = 443, *, command: int = 1) -> bytes:
    return bytes([5, command, 0, 3, len(name)]) + name + struct.pack(">H", port)


def test_greeting():
    assert socks.find_greeting(b"\5") is None
    assert socks.find_greeting(b"\5\2\0") is None
    assert socks.find_greeting(b"\5\2\2\0rest") == (True, 4)
    assert socks.find_greeting(b"\5\1\2") == (False, 3)
    assert socks.find_greeting(b"\5\0") == (False, 2)
    with pytest.raises(ValueError, match="not SOCKS5"):
        socks.find_greeting(b"\4\1")


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (asking(b"Example.org"), Destination("example.org", 443)),
        (asking(b"1.2.3.4", 22), Destination(ip_address("1.2.3.4"), 22)),
        (b"\5\1\0\1\1\2\3\4\0\x50", Destination(ip_address("1.2.3.4"), 80)),
        (b"\5\1\0\4" + bytes(15) + b"\1\1\xbb", Destination(ip_address("::1"), 443)),
    ],
)
def test_requests_in_every_piece(data, wanted):
    assert all(socks.find_request(data[:end]) is None for end in range(len(data)))
    assert socks.find_request(data + b"more") == (wanted, len(data))


@pytest.mark.parametrize(
    "data",
    [
        asking(b"allowed.org\0.evil.org"), asking(b"allowed.org\0"), asking(b""),
        asking(b"a b.org"),
        asking(b"allowed.org\r\n"), asking(b"\xc3\xbc.org"), asking(b"127.1"),
        asking(b"0x7f000001"),
        asking(b"a.org", 0), asking(b"x" * 255), asking(b"[::1]x"), b"\5\1\1\3\1a\0\1",
        b"\4\1\0\3\1a\0\1", b"\5\1\0\2\1a\0\1",
    ],
)  # fmt: skip
def test_odd_requests_are_refused(data):
    with pytest.raises(ValueError, match=r"."):
        socks.find_request(data)


@pytest.mark.parametrize("command", [0, 2, 3, 255])
def test_other_commands_are_unknown(command):
    with pytest.raises(socks.UnknownCommandError):
        socks.find_request(asking(b"a.org", command=command))


def test_random_bytes_raise_nothing_else():
    chance = random.Random(9)
    refused = 0
    for _ in range(20_000):
        data = chance.randbytes(chance.randrange(30))
        for parse in (socks.find_greeting, socks.find_request):
            for start in (b"", b"\5", b"\5\1\0\3"):
                try:
                    parse(start + data)
                except ValueError:
                    refused += 1
    assert 0 < refused < 2 * 3 * 20_000
