"""Questions for names (DNS), one at a time, and the few answers that a capsule gets.

Nothing here does I/O; everything raises ValueError and nothing else.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from atoll.model.egress import Address, canonical_name

A, AAAA = 1, 28
INTERNET = 1
MOST_BYTES = 4096
DATAGRAM_BYTES = 512
GOOD, MALFORMED, FAILED, UNKNOWN, REFUSED = 0, 1, 2, 4, 5
_HEAD = struct.Struct(">HHHHHH")
_ANSWER, _AUTHORITATIVE, _TRUNCATED, _WANTED, _AVAILABLE = 0x8000, 0x400, 0x200, 0x100, 0x80
_OPERATION = 0x7800
_POINTER_TO_QUESTION = 0xC00C


class DnsQuestion(NamedTuple):
    number: int
    wanted: bool
    """Whether the asker set `recursion desired`, which the answer repeats."""
    name: str | None
    """In canonical form; None when it is no valid host name."""
    kind: int
    asked: bytes
    """The question as it was written, which the answer repeats."""

    def answer(
        self, code: int, addresses: tuple[Address, ...] = (), *, ttl_s: int = 0, most: int = 65_535
    ) -> bytes:
        """The whole message; one longer than `most` is marked as truncated and has no addresses."""
        records = b"".join(_record(address, ttl_s) for address in addresses)
        size = _HEAD.size + len(self.asked) + len(records)
        if size > most:
            return _message(self, code, b"", 0, _TRUNCATED)
        return _message(self, code, records, len(addresses), 0)


def _message(question: DnsQuestion, code: int, records: bytes, count: int, more: int) -> bytes:
    flags = _ANSWER | _AUTHORITATIVE | _AVAILABLE | code | more
    flags |= _WANTED if question.wanted else 0
    head = _HEAD.pack(question.number, flags, 1 if question.asked else 0, count, 0, 0)
    return head + question.asked + records


def _record(address: Address, ttl_s: int) -> bytes:
    kind = A if address.version == 4 else AAAA
    packed = address.packed
    return struct.pack(">HHHIH", _POINTER_TO_QUESTION, kind, INTERNET, ttl_s, len(packed)) + packed


class UnansweredError(ValueError):
    """Not a query: answering it could cause a loop of answers."""


class BadQuestionError(ValueError):
    """A query that is answered with an error, `answer`."""

    def __init__(self, reason: str, number: int, code: int) -> None:
        super().__init__(reason)
        self.answer = DnsQuestion(number, wanted=False, name=None, kind=0, asked=b"").answer(code)


def parse_question(data: bytes) -> DnsQuestion:
    """Raises UnansweredError, or BadQuestionError with what to answer."""
    if len(data) < _HEAD.size or len(data) > MOST_BYTES:
        raise UnansweredError("not a query")
    number, flags, questions, answers, authorities, _ = _HEAD.unpack_from(data)
    if flags & _ANSWER:
        raise UnansweredError("a response")
    if flags & _OPERATION:
        raise BadQuestionError("not a standard query", number, UNKNOWN)
    if questions != 1 or answers or authorities or flags & _TRUNCATED:
        raise BadQuestionError("not exactly one question", number, MALFORMED)
    try:
        labels, end = _labels(data)
        kind, group = struct.unpack_from(">HH", data, end)
    except (ValueError, struct.error):
        raise BadQuestionError("not a valid name", number, MALFORMED) from None
    if group != INTERNET:
        raise BadQuestionError("not of class IN", number, REFUSED)
    wanted = bool(flags & _WANTED)
    return DnsQuestion(number, wanted, _canonical(labels), kind, data[_HEAD.size : end + 4])


def _labels(data: bytes) -> tuple[list[bytes], int]:
    labels: list[bytes] = []
    at = _HEAD.size
    while True:
        size = data[at] if at < len(data) else 0xFF
        if size > 63 or at + 1 + size > len(data) or at - _HEAD.size > 255:
            # Too long, cut short, or a pointer, of which a question needs none.
            raise ValueError("not a valid name")
        at += 1 + size
        if not size:
            return labels, at
        labels.append(data[at - size : at])


def _canonical(labels: list[bytes]) -> str | None:
    # A dot within a label would make one name look like another.
    if not labels or any(b"." in label for label in labels):
        return None
    try:
        return canonical_name(b".".join(labels).decode("ascii"))
    except ValueError:
        return None
