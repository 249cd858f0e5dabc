from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.model.lfs import Pointer, parse_pointer, render_pointer

OID = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
HEAD = "version https://git-lfs.github.com/spec/v1\n"


def test_a_pointer_is_read_and_written():
    text = f"{HEAD}oid sha256:{OID}\nsize 12345\n".encode()
    assert parse_pointer(text) == Pointer(OID, 12345)
    assert render_pointer(Pointer(OID, 12345)) == text
    extended = f"{HEAD}ext-0-case sha256:{OID}\noid sha256:{OID}\nsize 0\n".encode()
    assert parse_pointer(extended) == Pointer(OID, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "oid sha256:00",
        f"{HEAD}oid sha256:00\nsize 1\n",
        f"{HEAD}oid sha256:../../../../../../etc/passwd\nsize 1\n",
        f"{HEAD}oid sha256:{OID[:-3]}/..\nsize 1\n",
        f"{HEAD}oid sha256:{OID.upper()}\nsize 1\n",
        f"{HEAD}oid sha256:{OID}\nsize -1\n",
        f"{HEAD}oid sha256:{OID}\nsize 01\n",
        f"{HEAD}oid sha256:{OID}\nsize 1e9\n",
        f"{HEAD}oid sha256:{OID}\nsize {10**19}\n",
        f"{HEAD}oid sha256:{OID}\nsize 1\nmore 2\n",
        f"{HEAD}size 1\noid sha256:{OID}\n",
        f"{HEAD}oid sha1:{OID[:40]}\nsize 1\n",
        f"\n{HEAD}oid sha256:{OID}\nsize 1\n",
        f"{HEAD}oid sha256:{OID}\nsize 1\n" + "x" * 1024,
    ],
)
def test_what_is_not_exactly_a_pointer_is_none(text):
    assert parse_pointer(text.encode()) is None


@given(st.binary(max_size=300))
def test_a_pointer_names_a_place_in_the_store_whatever_the_content(content):
    for text in (content, HEAD.encode() + content):
        found = parse_pointer(text)
        assert found is None or (len(found.place) == 70 and ".." not in found.place)
