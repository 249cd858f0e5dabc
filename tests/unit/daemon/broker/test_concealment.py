"""Real values that servers repeat, and what the client gets instead."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.daemon.broker.concealment import Concealer, conceal
from atoll.daemon.broker.substitution import substitute
from atoll.model.secret import Substitution, make_placeholder, marker_of

PLACEHOLDER = make_placeholder(b"0123456789")
MARKER = marker_of(PLACEHOLDER)
KEY = Substitution(MARKER, "sk-real+/value==")
JWT = f"eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.AAAA{marker_of(PLACEHOLDER, 'a')}AAAA"
TOKEN = Substitution(marker_of(PLACEHOLDER, "a"), "real.jwt.value")
REPLACED = [(KEY.value, MARKER)]
NAMES = {"+": "plus", "/": "sol", "=": "equals", "-": "#45"}


def in_hex(character, form):
    return form.replace("NN", f"{ord(character):02x}").replace("00nn", f"{ord(character):04X}")


ESCAPES = [
    lambda c: c,
    lambda c: in_hex(c, "%NN"),
    lambda c: in_hex(c, "%NN").upper(),
    lambda c: in_hex(c, "%25NN"),
    lambda c: in_hex(c, "%2525NN"),
    lambda c: in_hex(c, "%uNN").replace("%u", "%u00"),
    lambda c: in_hex(c, r"\u00nn"),
    lambda c: in_hex(c, r"\\u00nn"),
    lambda c: in_hex(c, r"\xNN"),
    lambda c: in_hex(c, r"\u{NN}"),
    lambda c: c if c.isalnum() else f"\\{c}",
    lambda c: c if c.isalnum() else f"\\\\\\{c}",
    lambda c: f"&#{ord(c)};",
    lambda c: f"&#00{ord(c)};",
    lambda c: in_hex(c, "&#xNN;"),
    lambda c: in_hex(c, "&#X000NN;"),
    lambda c: in_hex(c, "&amp;#xNN;"),
    lambda c: f"&{NAMES[c]};" if c in NAMES else c,
]


def test_what_was_replaced_is_put_back():
    found = substitute(
        [(b"authorization", f"Bearer {JWT}".encode())], f"?key={MARKER}", [KEY, TOKEN]
    )
    assert dict(found.replaced) == {KEY.value: MARKER, TOKEN.value: JWT}
    said = conceal(b"you sent real.jwt.value and sk-real+/value==", found.replaced)
    assert said == f"you sent {JWT} and {MARKER}".encode()


def test_encoded_pair_is_put_back():
    sent = b"Basic " + base64.b64encode(f"user:{MARKER}".encode())
    found = substitute([(b"authorization", sent)], "", [KEY])
    assert conceal(found.fields[0][1], found.replaced) == sent


@pytest.mark.parametrize(
    "said",
    [
        "sk-real%2B%2Fvalue%3D%3D",
        "sk-real%2b%2fvalue%3d%3d",
        "sk-real%252B%252Fvalue%253D%253D",
        r"sk-real+\/value==",
        r"sk-real\u002B\u002fvalue\u003D\u003D",
        r"sk-real\x2B\/value\x3d=",
        "sk-real&#43;&#x2F;value&#61;&equals;",
        "sk-real&plus;&sol;value==",
        "sk-real%2B/value==",
    ],
)
def test_escaped_values_are_put_back(said):
    assert conceal(f"<{said}>".encode(), REPLACED) == f"<{MARKER}>".encode()


@pytest.mark.parametrize("value", ["a%2Bb&amp;", r"a\u0041\/b", "%", "&", "\\\\", "a%", "q\"'<b>"])
@pytest.mark.parametrize(
    "escape", [str, quote, html.escape, lambda v: json.dumps(v)[1:-1], lambda v: quote(quote(v))]
)
def test_value_that_looks_like_an_escape(value, escape):
    said = conceal(f"<<{escape(value)}>>".encode(), [(value, MARKER)])
    assert said == f"<<{MARKER}>>".encode()


@given(
    st.lists(st.sampled_from(ESCAPES), min_size=len(KEY.value), max_size=len(KEY.value)),
    st.lists(st.integers(1, 12), max_size=40),
    st.sampled_from(["", "sk-re", "%2", "%25", "\\u00", "x&am", "50% \\n"]),
)
def test_value_in_any_form_and_in_any_pieces(escapes, sizes, before):
    said = "".join(escape(c) for escape, c in zip(escapes, KEY.value, strict=True))
    # The end of what is before must not become a part of the first character.
    text = f"{before} [{said}] after".encode()
    concealer, at, found = Concealer(REPLACED), 0, b""
    for size in sizes:
        found += concealer.feed(text[at : at + size])
        at += size
    found += concealer.feed(text[at:]) + concealer.flush()
    assert found == f"{before} [{MARKER}] after".encode()


@given(st.text("sk-real%25\\u00&#;x/+= ", max_size=80), st.integers(1, 9))
def test_what_has_no_value_is_not_changed(text, size):
    data, concealer = text.encode(), Concealer([("no-such-value", MARKER)])
    parts = [concealer.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert b"".join(parts) + concealer.flush() == data


@given(st.lists(st.sampled_from([KEY.value, "sk-", "sk-real", "s", "x", "%2B"]), max_size=8))
def test_value_in_pieces_is_put_back(words):
    text = "".join(words).encode()
    concealer = Concealer(REPLACED)
    said = b"".join(concealer.feed(text[at : at + 1]) for at in range(len(text)))
    assert said + concealer.flush() == text.replace(KEY.value.encode(), MARKER.encode())


def test_text_that_cannot_begin_a_value_is_not_held():
    assert Concealer(REPLACED).feed(b"data: x\n\n") == b"data: x\n\n"
    assert Concealer(REPLACED).feed(b'{"a":"100 %, \\u00e4 &c."}') == b'{"a":"100 %, \\u00e4 &c."}'


@pytest.mark.parametrize("noise", [b"%25", b"\\", b"&amp;", b"&#x26;", b"&", b"%", b"%41", b"s"])
def test_what_is_held_is_bounded(noise):
    concealer, text = Concealer(REPLACED), noise * 5000
    passed = b"".join(concealer.feed(text[at : at + 1000]) for at in range(0, len(text), 1000))
    assert len(text) - len(passed) < 300
    assert passed + concealer.flush() == text


NESTED = [
    (lambda text: quote(in_entities(text), safe=""), "entities in a URL"),
    (lambda text: in_entities(in_entities(text)), "entities twice"),
    (lambda text: in_entities(text).replace("&", r"\u0026").replace("#", r"\u0023"), "in JSON"),
    (lambda text: quote(quote(text, safe=""), safe=""), "a URL twice"),
]


def in_entities(text):
    return "".join(c if c.isalnum() else f"&#x{ord(c):x};" for c in text)


@pytest.mark.parametrize("escape", [escape for escape, _ in NESTED], ids=[n for _, n in NESTED])
def test_value_that_is_escaped_twice_is_found_in_any_two_pieces(escape):
    said = f"bad key {escape(KEY.value)} !".encode()
    assert conceal(said, REPLACED) == f"bad key {MARKER} !".encode()
    for cut in range(1, len(said)):
        concealer = Concealer(REPLACED)
        shown = concealer.feed(said[:cut]) + concealer.feed(said[cut:]) + concealer.flush()
        assert shown == f"bad key {MARKER} !".encode(), cut
