"""Questions for names: one at a time, in full, and answered with what they asked."""

from __future__ import annotations

import random
import struct
from ipaddress import ip_address

import pytest

from atoll.drivers.network import dns
from atoll.drivers.network.dns import BadQuestionError, UnansweredError, parse_question


def question(
    name: bytes, kind: int = 1, group: int = 1, *, flags: int = 0x100, counts=(1, 0, 0, 0)
):
    labels = b"".join(bytes([len(part)]) + part for part in name.split(b".") if part)
    return struct.pack(">6H", 7, flags, *counts) + labels + b"\0" + struct.pack(">HH", kind, group)


def code(message: bytes) -> int:
    return message[3] & 0xF


def test_question_and_answer():
    asked = parse_question(question(b"WwW.Example.org"))
    assert (asked.name, asked.kind) == ("www.example.org", dns.A)
    said = asked.answer(dns.GOOD, (ip_address("198.18.1.0"),), ttl_s=30)
    number, flags, *counts = struct.unpack_from(">6H", said)
    assert (number, flags & 0x8000, flags & 0xF, counts) == (7, 0x8000, 0, [1, 1, 0, 0])
    assert b"\3WwW\7Example\3org\0" in said
    assert said.endswith(struct.pack(">HHHIH", 0xC00C, 1, 1, 30, 4) + bytes([198, 18, 1, 0]))


def test_other_kinds_are_read_too():
    for kind in (28, 65, 16, 255, 12):
        assert parse_question(question(b"a.org", kind)).kind == kind


def test_extension_behind_the_question_is_fine():
    edns = b"\0\0\x29\4\xd0\0\0\0\0\0\0"
    assert parse_question(question(b"a.org", counts=(1, 0, 0, 1)) + edns).name == "a.org"


@pytest.mark.parametrize("name", [b"", b"127.1", b"a b.org", b"a\0.org", b"\xfc.org", b"-a.org"])
def test_what_is_no_host_name_has_none(name):
    assert parse_question(question(name)).name is None


def test_dot_within_a_label_makes_no_other_name():
    data = question(b"a.org").replace(b"\1a\3org", b"\5a.org")
    assert parse_question(data).name is None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (question(b"a.org", counts=(2, 0, 0, 0)), dns.MALFORMED),
        (question(b"a.org", counts=(0, 0, 0, 0)), dns.MALFORMED),
        (question(b"a.org", counts=(1, 1, 0, 0)), dns.MALFORMED),
        (question(b"a.org", flags=0x2800), dns.UNKNOWN),
        (question(b"a.org", group=3), dns.REFUSED),
        (question(b"a.org")[:-1], dns.MALFORMED),
        (question(b"a.org")[:14], dns.MALFORMED),
        (struct.pack(">6H", 7, 0, 1, 0, 0, 0) + b"\xc0\x0c\0\1\0\1", dns.MALFORMED),
        (question(b".".join([b"abcdefg"] * 40)), dns.MALFORMED),
    ],
)
def test_bad_questions_have_an_answer(data, expected):
    with pytest.raises(BadQuestionError) as caught:
        parse_question(data)
    assert code(caught.value.answer) == expected
    assert caught.value.answer[:2] == b"\0\7"


@pytest.mark.parametrize("data", [b"", b"x" * 11, question(b"a.org", flags=0x8180), bytes(5000)])
def test_what_is_no_question_has_none(data):
    with pytest.raises(UnansweredError):
        parse_question(data)


def test_long_answers_are_truncated():
    many = tuple(ip_address(f"198.18.1.{last}") for last in range(100))
    said = parse_question(question(b"a.org")).answer(dns.GOOD, many, most=512)
    assert len(said) <= 512
    assert struct.unpack_from(">H", said, 2)[0] & 0x200
    assert struct.unpack_from(">H", said, 6)[0] == 0


def test_random_bytes_raise_nothing_else():
    chance = random.Random(13)
    seed = question(b"www.example.org")
    refused = 0
    for _ in range(20_000):
        data = bytearray(seed)
        for _ in range(chance.randrange(1, 5)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            parse_question(bytes(data[: chance.randrange(len(data) + 1)]))
        except ValueError:
            refused += 1
    assert 0 < refused < 20_000
