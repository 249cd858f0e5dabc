"""Known values are found in every form that is promised, however a text is cut into pieces."""

from __future__ import annotations

import base64
import json

from hypothesis import example, given
from hypothesis import strategies as st

from atoll.model.secretvalues import SecretSearch, StreamSearch, parts_of

VALUE = b'sk-7f3a/+=value\\"quoted'
PEM = b"-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEGCCqGSM49\nAQcEb\n-----END-----\n"
long_values = st.binary(min_size=8, max_size=80).filter(lambda value: len(value.strip()) >= 8)


@given(long_values, st.binary(max_size=40), st.binary(max_size=40))
@example(VALUE, b"", b"")
@example(b"\xff" * 8, b"a", b"bc")
def test_every_form_is_found(value, before, after):
    search = SecretSearch([("KEY", value)])
    whole = value.strip()
    text = before + whole + after
    forms = [
        text,
        base64.b64encode(text),
        base64.urlsafe_b64encode(text),
        text.hex().encode(),
        text.hex().upper().encode(),
        json.dumps(whole.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape"),
    ]
    assert [found for form in forms if (found := search.find(form)) is None] == []


@given(long_values, st.binary(max_size=200), st.integers(1, 30))
@example(b"12345678", b"\n\n\n", 1)
def test_a_stream_is_as_its_text(value, around, width):
    search = SecretSearch([("KEY", value)])
    text = around + value + around
    stream, found = StreamSearch(search), None
    for at in range(0, len(text), width):
        found = found or stream.find(text[at : at + width])
    assert found is not None
    secret, line = found
    assert secret == "KEY"
    assert 1 <= line <= text.count(b"\n") + 1


def test_the_line_is_that_of_the_first_place():
    search = SecretSearch([("A", b"value-of-a"), ("B", b"value-of-b")])
    text = b"one\ntwo\nvalue-of-b\nvalue-of-a\n"
    assert StreamSearch(search).find(text) == ("B", 3)
    stream = StreamSearch(search)
    answers = [stream.find(bytes([byte])) for byte in text]
    assert next(filter(None, answers)) == ("B", 3)


def test_the_lines_of_a_key_are_found():
    search = SecretSearch([("KEY", PEM)])
    assert search.find(b"x MIGHAgEAMBMGByqGSM49AgEGCCqGSM49 x") is not None
    assert search.find(PEM.replace(b"\n", b"\r\n")) is not None
    # Lines that other files have, too.
    assert search.find(b"-----BEGIN PRIVATE KEY-----\n") is None
    assert search.find(b"AQcEb") is None


def test_short_values_are_not_searched():
    assert not SecretSearch([("PIN", b"1234567")])
    assert not SecretSearch([])
    assert parts_of(b"12345678\n") == (b"12345678",)


def test_no_value_is_shown():
    assert "value" not in repr(SecretSearch([("KEY", b"value-of-a")]))
