from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.model.errors import SpecError
from atoll.model.names import (
    NAME_LENGTH,
    branch_of,
    numbered,
    parse_name,
    printable,
    short_hash,
    slug,
)


@pytest.mark.parametrize("name", ["a", "7", "fix-auth", "a--b", "0-0", "x" * NAME_LENGTH])
def test_good_names(name):
    assert parse_name(name) == name


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("", None),
        ("/", None),
        ("..", None),
        ("🚀", None),
        ("-", None),
        ("a/b", "a-b"),
        ("../etc", "etc"),
        ("-rf", "rf"),
        ("a-", "a"),
        ("Fix Auth", "fix-auth"),
        ("fix_auth", "fix-auth"),
        ("café", "cafe"),
        ("rocket 🚀 man", "rocket-man"),
        ("a\nb", "a-b"),
        ("a\0b", "a-b"),
        ("a.lock", "a-lock"),
        ("٣", None),
        ("x" * 300, "x" * NAME_LENGTH),
        ("x" * NAME_LENGTH + "-y", "x" * NAME_LENGTH),
        ("fix-auth\n", "fix-auth"),
    ],
)
def test_bad_names_are_refused_with_a_usable_one(name, close):
    with pytest.raises(SpecError) as caught:
        parse_name(name)
    assert caught.value.exit_code == 2
    assert caught.value.hint == (f"use `{close}`" if close else None)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 300


def test_message_says_what_was_named():
    with pytest.raises(SpecError, match="capsule name `A`"):
        parse_name("A")


@given(st.text())
def test_slug_is_empty_or_a_name(text):
    made = slug(text)
    assert made == "" or parse_name(made) == made
    assert slug(made) == made


@given(st.text())
def test_every_text_is_a_name_or_refused(text):
    if re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", text, re.ASCII):
        assert parse_name(text) == text
        return
    with pytest.raises(SpecError) as caught:
        parse_name(text)
    assert caught.value.message.isprintable()


@given(st.text(st.characters()))
def test_printable_moves_no_cursor(text):
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    shown.encode()


def test_printable_leaves_what_can_be_read():
    assert printable("a é 漢 `x`") == "a é 漢 `x`"
    assert printable("\x1b[2J\u202e\udc80\n") == "\\x1b[2J\\u202e\\udc80\\n"


def test_branch_has_its_own_room():
    assert branch_of("fix-auth") == "atoll/fix-auth"


@given(st.text(st.characters()))
def test_short_hash_takes_any_path(text):
    if not any("\ud800" <= char <= "\udc7f" or "\udd00" <= char <= "\udfff" for char in text):
        assert re.fullmatch("[0-9a-f]{8}", short_hash(text))


def test_several_names():
    assert numbered("a", 1) == ["a"]
    assert numbered("a", 3) == ["a-1", "a-2", "a-3"]


def test_several_names_must_all_fit():
    with pytest.raises(SpecError):
        numbered("x" * NAME_LENGTH, 2)
    with pytest.raises(SpecError, match="`-a`"):
        numbered("-a", 2)
