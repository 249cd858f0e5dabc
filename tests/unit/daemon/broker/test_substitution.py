"""Placeholders in requests, and what takes their places."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.daemon.broker.substitution import (
    TooManyPlaceholdersError,
    UnsafeValueError,
    find_foreign,
    find_misplaced,
    find_placeholders,
    substitute,
)
from atoll.model.secret import Substitution, make_placeholder, marker_of

PLACEHOLDER = make_placeholder(b"0123456789")
OTHER = make_placeholder(b"9876543210")
MARKER = marker_of(PLACEHOLDER)
KEY = Substitution(MARKER, "sk-real+/value==")
JWT = f"eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.AAAA{marker_of(PLACEHOLDER, 'a')}AAAA"
TOKEN = Substitution(marker_of(PLACEHOLDER, "a"), "real.jwt.value")


def basic(text: str) -> bytes:
    return b"Basic " + base64.b64encode(text.encode())


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (b"authorization", f"Bearer {MARKER}".encode(), b"Bearer sk-real+/value=="),
        (b"X-Api-Key", MARKER.encode(), b"sk-real+/value=="),
        (b"authorization", f"Bearer {JWT}".encode(), b"Bearer real.jwt.value"),
        (b"authorization", f"token=sk-ant-{MARKER}==, x".encode(), b"token=sk-real+/value==, x"),
        (b"authorization", basic(f"user:{MARKER}"), basic("user:sk-real+/value==")),
        (b"authorization", basic(f"{MARKER}:"), basic("sk-real+/value==:")),
        (b"cookie", f"session={MARKER}; b=1".encode(), b"session=sk-real+/value==; b=1"),
        (b"x-other", marker_of(OTHER).encode(), marker_of(OTHER).encode()),
        (b"user-agent", MARKER.encode(), MARKER.encode()),
        (b"User_Agent", MARKER.encode(), MARKER.encode()),
        (b"x-api-version", MARKER.encode(), MARKER.encode()),
        (b"Idempotency-Key", MARKER.encode(), MARKER.encode()),
        (b"x-project-token", MARKER.encode(), b"sk-real+/value=="),
        (b"x-other", b"\xff\x00", b"\xff\x00"),
    ],
)
def test_header(name, value, expected):
    found = substitute([(name, value)], "", [KEY, TOKEN])
    assert found.fields == ((name, expected),)


def test_query():
    found = substitute([], f"?a=1&key={MARKER}&b=%20+&c={PLACEHOLDER}%78z&d", [KEY])
    assert found.query == "?a=1&key=sk-real%2B%2Fvalue%3D%3D&b=%20+&c=sk-real%2B%2Fvalue%3D%3D&d"
    assert substitute([], "", [KEY]).query == ""


@pytest.mark.parametrize(
    ("fields", "query", "expected"),
    [
        ([(b"x-feature", b"x"), (b"X_Other", MARKER.encode())], "", "x-other"),
        ([], f"?key={MARKER}&q={MARKER[:-1]}%7a", "q"),
        ([(b"x-api-key", MARKER.encode()), (b"user-agent", MARKER.encode())], "?q=1", None),
        ([(b"authorization", basic(f"u:{MARKER}"))], f"?access_token={MARKER}", None),
    ],
)
def test_misplaced(fields, query, expected):
    assert find_misplaced(fields, query, [PLACEHOLDER]) == expected


def test_values_are_not_shown():
    found = substitute([(b"x", MARKER.encode())], "", [KEY])
    assert KEY.value not in repr(found) + repr(KEY)


@pytest.mark.parametrize("value", ["", "a b", "a\r\nX: y", "ä", "a\x00"])
def test_value_that_no_header_can_carry(value):
    with pytest.raises(UnsafeValueError) as caught:
        substitute([(b"x", MARKER.encode())], "", [Substitution(MARKER, value)])
    assert not str(caught.value)


@pytest.mark.parametrize(
    ("fields", "query"),
    [
        ([(b"authorization", f"Bearer {MARKER}".encode())], ""),
        ([(b"authorization", basic(f"u:{MARKER}"))], ""),
        ([(b"x-unknown", MARKER.encode())], ""),
        ([], f"?x={MARKER}"),
        ([], f"?x={MARKER[:-1]}%7a"),
        ([], f"?key={MARKER}"),
        ([(b"authorization", f"token={MARKER}".encode())], ""),
        ([(b"authorization", f"SSO-key {MARKER}:{MARKER}".encode())], ""),
        ([(b"authorization", f'Token token="{MARKER}"'.encode())], ""),
        ([(b"authorization", basic(f"{MARKER}:x-oauth-basic"))], ""),
        ([(b"authorization", basic(f"{MARKER}:X"))], ""),
        ([(b"authorization", basic(MARKER))], ""),
        ([(b"cookie", f"a={MARKER}; b=prefix-{MARKER}".encode())], ""),
    ],
)
def test_placeholder_is_found(fields, query):
    assert find_placeholders(fields, query, [PLACEHOLDER, OTHER]) == {PLACEHOLDER}
    assert find_foreign(fields, query, [PLACEHOLDER]) is None


@pytest.mark.parametrize(
    ("fields", "query", "expected"),
    [
        ([(b"Authorization", b"Bearer sk-foreign")], "", "authorization"),
        ([(b"authorization", b"Basic !!!")], "", "authorization"),
        ([(b"authorization", basic("u:p"))], "", "authorization"),
        ([(b"authorization", f"Bearer x {MARKER}".encode())], "", "authorization"),
        ([(b"authorization", f"Bearer x,{MARKER}".encode())], "", "authorization"),
        ([(b"authorization", f"Bearer {marker_of(OTHER)}".encode())], "", "authorization"),
        ([(b"x-api-key", b"sk")], "", "x-api-key"),
        ([(b"x-goog-api-key", b"sk")], "", "x-goog-api-key"),
        ([(b"cookie", f"a={MARKER};b=c".encode())], "", "cookie"),
        ([(b"cookie", b"bare")], "", "cookie"),
        ([(b"cookie", f"a=foreign b={MARKER}".encode())], "", "cookie"),
        ([(b"cookie", f"a=foreign, b={MARKER}".encode())], "", "cookie"),
        ([(b"X_Api_Key", b"sk")], "", "x-api-key"),
        ([], "?key=foreign", "key"),
        ([], "?a=1&%41PI_KEY=foreign", "api_key"),
        ([], f"?key={MARKER}&key=foreign", "key"),
        ([], f"?key=foreign%3B{MARKER}", "key"),
        ([], "?a=1;key=foreign", "key"),
        ([(b"authorization", basic(f"{MARKER}:foreign"))], "", "authorization"),
        ([(b"authorization", basic(f"u:foreign {MARKER}"))], "", "authorization"),
        ([(b"authorization", basic(f"foreign {MARKER}:"))], "", "authorization"),
        ([(b"authorization", f"Bearer foreign;{MARKER}".encode())], "", "authorization"),
        ([(b"authorization", f"Bearer foreign={MARKER}".encode())], "", "authorization"),
        ([(b"x-api-key", f"foreign|{MARKER}".encode())], "", "x-api-key"),
        ([(b"cookie", f"a=foreign:{MARKER}".encode())], "", "cookie"),
    ],
)
def test_foreign_credential_is_found(fields, query, expected):
    assert find_foreign(fields, query, [PLACEHOLDER]) == expected


def test_no_credential():
    fields = [(b"authorization", b""), (b"accept", b"*/*"), (b"x-request", b"sk-foreign")]
    assert find_foreign(fields, "?q=1&key=", [PLACEHOLDER]) is None
    assert find_placeholders(fields, "", [PLACEHOLDER]) == frozenset()


@given(st.binary(max_size=60), st.text(st.characters(max_codepoint=255), max_size=60))
def test_nothing_else_is_changed(value, query):
    fields = [(b"authorization", value), (b"x", value)]
    found = substitute(fields, f"?{query}", [KEY])
    assert found.fields == tuple(fields)
    assert found.query == f"?{query}"
    assert not found.replaced


def test_placeholders_without_end_are_not_replaced():
    with pytest.raises(TooManyPlaceholdersError):
        substitute([(b"x-token", f"{MARKER} ".encode() * 65)], "", [KEY])
    with pytest.raises(TooManyPlaceholdersError):
        substitute([], "?" + "&".join([f"key={MARKER}"] * 65), [KEY])


@pytest.mark.parametrize(
    "value", [f"{MARKER}{'A' * 30_000}".encode(), basic(f"u:{MARKER}{'A' * 2000}")]
)
def test_what_is_put_back_is_not_much_longer(value):
    found = substitute([(b"x-token", value)], "", [Substitution(MARKER, "12345678")])
    assert found.replaced
    assert {token for _, token in found.replaced} == {MARKER}
