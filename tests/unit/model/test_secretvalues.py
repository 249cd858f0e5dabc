"""Known values are found in every form that is promised, however a text is cut into pieces."""

from __future__ import annotations

import base64
import hashlib
import json
import textwrap

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from atoll.model.byte_search import ByteSearch
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


TOKEN = b"sk-proj-" + b"Ab3_dE9xQ" * 12
URL = b'postgres://shop:s3cr3t&pass"w<ord@db.example/shop?x=\\1'


def wrapped(encoded, width, end="\n"):
    return end.join(textwrap.wrap(encoded, width)).encode()


def php(value):
    return json.dumps(value.decode()).replace("/", "\\/").encode()


def go(value):
    text = json.dumps(value.decode())
    for one in "&<>":
        text = text.replace(one, f"\\u{ord(one):04x}")
    return text.encode()


@pytest.mark.parametrize(
    "text",
    [
        base64.encodebytes(b"KEY=" + TOKEN + b"\n"),
        wrapped(base64.b64encode(TOKEN).decode(), 64),
        wrapped(base64.b64encode(b"x" + TOKEN).decode(), 76, "\r\n  "),
        wrapped(TOKEN.hex(), 60),
        wrapped(TOKEN.hex(" "), 48, "\n "),
        wrapped(TOKEN.hex().upper(), 32, "\n\t"),
        "".join(f"\\u{byte:04X}" for byte in TOKEN).encode(),
    ],
    ids=["base64", "64 columns", "CRLF", "xxd -p", "od", "indented", "codes"],
)
@pytest.mark.parametrize("width", [1, 7, 64, 1 << 16])
def test_wrapped_and_escaped_values_are_found_with_their_line(text, width):
    stream = StreamSearch(SecretSearch([("KEY", TOKEN)]))
    text = b"one\n\ttwo \\n\n\nfour\n" + text
    found = (stream.find(text[at : at + width]) for at in range(0, len(text), width))
    assert next(filter(None, found), None) == ("KEY", 5)


@pytest.mark.parametrize("write", [php, go, lambda value: go(value).replace(b"/", b"\\u002F")])
@pytest.mark.parametrize("value", [URL, "pass/w\u00f6rt-\U0001f600&\t<x>".encode()])
@pytest.mark.parametrize("width", [1, 3, 1 << 16])
def test_json_of_other_languages_is_found(value, write, width):
    stream = StreamSearch(SecretSearch([("KEY", value)]))
    text = b'{\n "path": "c:\\\\",\n "key": ' + write(value) + b"\n}\n"
    found = (stream.find(text[at : at + width]) for at in range(0, len(text), width))
    assert next(filter(None, found), None) == ("KEY", 3)


LINES = [base64.b64encode(hashlib.sha384(b"%d" % n).digest()) for n in range(800)]


@given(st.integers(0, 799), st.binary(max_size=40), st.integers(1, 300))
@example(799, b"", 300)
def test_every_line_of_a_long_file_is_found(number, around, width):
    search = SecretSearch([("KEY", b"\n".join(LINES)), ("OTHER", b"value-of-another")])
    stream, found = StreamSearch(search), None
    text = around + LINES[number] + around
    for at in range(0, len(text), width):
        found = found or stream.find(text[at : at + width])
    assert found == ("KEY", 1 + around.count(b"\n"))
    # Not Base64, so that nothing around it completes the line.
    other = text.replace(LINES[number], LINES[number][:-1] + b"~")
    assert StreamSearch(search).find(other) is None


@given(
    st.lists(st.binary(min_size=1, max_size=30), min_size=13, max_size=20),
    st.lists(st.integers(0, 12), max_size=3),
    st.binary(max_size=50),
)
def test_many_strings_are_found_as_one_by_one(strings, inside, around):
    text = around + around.join(strings[number] for number in inside) + around
    places = [(at, one) for one in strings if (at := text.find(one)) >= 0]
    found = ByteSearch(strings).find(text)
    assert (None if found is None else found[0]) == min((at for at, _ in places), default=None)


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
