"""Private values never reach the recorded log, however the output is split."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.keeper.log import LogWriter, read_log
from atoll.keeper.redaction import Redactor

SECRET = b"sk-abcdabcd"


def redact(pieces, *values):
    redactor = Redactor(values)
    return b"".join([*(redactor.add(piece) for piece in pieces), redactor.flush()])


@pytest.mark.parametrize("at", range(len(SECRET) + 3))
def test_value_in_two_pieces(at):
    text = b"a " + SECRET + b"\n"
    assert redact([text[:at], text[at:]], SECRET) == b"a [redacted]\n"


def test_value_byte_by_byte():
    text = b"x" + SECRET * 2 + b"sk-abc"
    assert redact([bytes([byte]) for byte in text], SECRET) == b"x[redacted][redacted]sk-abc"


def test_only_a_possible_beginning_is_held():
    redactor = Redactor([SECRET])
    assert redactor.add(b"prompt$ ") == b"prompt$ "
    assert redactor.add(b"sk-") == b""
    assert redactor.add(b"x") == b"sk-x"


def test_longer_value_that_begins_with_a_shorter_one():
    assert redact([b"password", b"123"], b"password", b"password123") == b"[redacted]"
    assert redact([b"password", b"12."], b"password", b"password123") == b"[redacted]12."


def test_short_values_stay():
    assert redact([b"true 1234567"], b"true", b"1234567") == b"true 1234567"


def test_lines_as_a_terminal_prints_them():
    assert redact([b"KEY\r\nabcdefgh\r\n"], b"KEY\nabcdefgh") == b"[redacted]\r\n"


@given(
    st.lists(
        st.sampled_from([b"aa", b"aaaabbbb", b"b", b"aab", b"aaaa", b"abab" * 10]), max_size=20
    )
)
def test_no_split_reveals_a_value(pieces):
    values = (b"aaaabbbb", b"abab" * 10)
    whole = redact([b"".join(pieces)], *values)
    assert redact(pieces, *values) == whole
    assert not any(value in whole for value in values)


@given(
    # None is in the mark, with which others are replaced.
    st.lists(st.binary(min_size=8, max_size=40).map(b"\xff".__add__), min_size=14, max_size=18),
    st.lists(st.integers(0, 13), max_size=4),
    st.integers(1, 50),
)
def test_many_values_in_any_pieces(values, inside, width):
    text = b"x".join([b"", *(values[number] for number in inside), b""])
    whole = redact([text], *values)
    assert redact([text[at : at + width] for at in range(0, len(text), width)], *values) == whole
    assert not any(value in whole for value in values)


def test_log_without_the_value(tmp_path):
    log = LogWriter(str(tmp_path), 1 << 20, 0.0, (SECRET,))
    for out, err in itertools.zip_longest((b"1 sk-abc", b"dabcd 2"), (b"sk-ab", b"cdabcd")):
        log.write("out", out, 0.0)
        log.write("err", err, 0.0)
    log.close(0.0)
    texts = {"out": b"", "err": b""}
    for entry in read_log(tmp_path):
        texts[entry.stream] += entry.data
    assert texts == {"out": b"1 [redacted] 2", "err": b"[redacted]"}
