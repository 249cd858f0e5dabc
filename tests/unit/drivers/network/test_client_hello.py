"""The hello of TLS: real ones by OpenSSL, cut in every way, and forged ones."""

from __future__ import annotations

import random
import ssl
import struct

import pytest

from atoll.drivers.network.client_hello import HelloReader, parse_hello


def real_hello(name: str | None) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def sized(data: bytes, width: int = 2) -> bytes:
    return len(data).to_bytes(width, "big") + data


def extension(kind: int, data: bytes) -> bytes:
    return struct.pack(">H", kind) + sized(data)


def server_name(*names: bytes, kind: int = 0) -> bytes:
    return extension(0, sized(b"".join(bytes([kind]) + sized(name) for name in names)))


def forged(*extensions: bytes, tail: bytes = b"") -> bytes:
    """A body with these extensions."""
    start = b"\3\3" + bytes(32) + sized(b"", 1) + sized(b"\x13\1") + sized(b"\0", 1)
    return start + sized(b"".join(extensions)) + tail


def record(body: bytes, kind: int = 22, *, message: int = 1, piece: int = 16_384) -> bytes:
    whole = bytes([message]) + sized(body, 3)
    pieces = [whole[at : at + piece] for at in range(0, len(whole), piece)]
    return b"".join(bytes([kind, 3, 1]) + sized(part) for part in pieces)


def read(data: bytes, step: int = 1 << 20):
    reader = HelloReader()
    for at in range(0, len(data), step):
        found = reader.feed(data[at : at + step])
        if found is not None:
            return found
    return None


@pytest.mark.parametrize("step", [1, 2, 5, 64, 10_000])
def test_real_hello_in_pieces(step):
    found = read(real_hello("Example.ORG"), step)
    assert (found.name, found.has_ech) == ("example.org", False)
    assert read(real_hello(None), step).name is None


@pytest.mark.parametrize("piece", [1, 2, 3, 50])
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_hello_over_many_records(piece, step):
    body = real_hello("example.org")[9:]
    assert read(record(body, piece=piece), step).name == "example.org"


def test_every_start_of_it_waits_for_more():
    data = real_hello("example.org")
    assert all(read(data[:end]) is None for end in range(len(data)))
    assert read(data + b"early data").name == "example.org"


def test_encrypted_hello_is_seen():
    found = parse_hello(forged(server_name(b"outer.org"), extension(0xFE0D, b"\0" * 20)))
    assert (found.name, found.has_ech) == ("outer.org", True)


def test_hello_without_extensions():
    body = b"\3\1" + bytes(32) + sized(b"", 1) + sized(b"\0\x2f") + sized(b"\0", 1)
    assert read(record(body)).name is None


@pytest.mark.parametrize(
    "body",
    [
        forged(server_name(b"a.org"), server_name(b"b.org")),
        forged(server_name(b"a.org", b"b.org")),
        forged(server_name()),
        forged(server_name(b"")),
        forged(server_name(b"a.org", kind=1)),
        forged(server_name(b"a.org\0.evil.org")),
        forged(server_name(b"127.0.0.1")),
        forged(server_name(b"a..org")),
        forged(server_name(b"\xfc.org")),
        forged(extension(0, b"")),
        forged(extension(0, sized(b"\0" + sized(b"a.org")) + b"x")),
        forged(server_name(b"a.org"), tail=b"x"),
        forged(extension(0xFE0D, b""), extension(0xFE0D, b"")),
        forged(b"\0"),
        b"\3\3",
        b"",
    ],
)
def test_doubtful_hellos_are_refused(body):
    with pytest.raises(ValueError, match=r"."):
        read(record(body))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-OpenSSH", b"\x80\x2e\1\0\2", b"\x16\2\0\0\1x",
        b"\x16\3\1\0\0", b"\x16\3\1\xff\xff", b"\x15\3\1\0\2\2\x28",
        record(forged(server_name(b"a.org")), message=2),
        record(forged(server_name(b"a.org")), kind=23),
        b"\x16\3\1\0\4\1\xff\xff\xff",
        b"\x16\3\1\0\1\1\x17\3\1\0\1x",
    ],
)  # fmt: skip
def test_what_is_no_hello_is_refused_at_once(data):
    with pytest.raises(ValueError, match=r"."):
        read(data)


def test_what_follows_within_the_message_is_refused():
    whole = record(forged(server_name(b"a.org")))
    longer = whole[:3] + sized(whole[5:] + b"\1\0\0\0")
    with pytest.raises(ValueError, match="trailing data"):
        read(longer)


def test_endless_hello_is_refused():
    with pytest.raises(ValueError, match="too long"):
        read(record(forged(extension(21, bytes(40_000)))))


def test_random_bytes_raise_nothing_else():
    chance = random.Random(11)
    seed = real_hello("example.org")
    refused = 0
    for _ in range(10_000):
        data = bytearray(seed)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            read(bytes(data))
        except ValueError:
            refused += 1
    assert 0 < refused < 10_000
