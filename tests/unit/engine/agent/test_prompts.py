"""Prompts: what is accepted, and the names that are made from them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.agent import spawning
from atoll.engine.agent.prompts import (
    LIMIT_BYTES,
    find_name,
    require_prompt,
    require_typable,
    subject_of,
)
from atoll.model.agent import AgentSpec
from atoll.model.errors import IsolationError, SpecError
from atoll.model.names import parse_name


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("fix the auth regression", "fix-auth-regression"),
        ("Fix the login page, please, and also the tests of it", "fix-login-page-also"),
        ("-rf is not an option", "rf-is-not-option"),
        ("\n\n  Add a test\nwith details", "add-test"),
        ("the", "the"),
        ("修复登录", "task"),
        ("x" * 500, "x" * 32),
        ("supercalifragilisticexpialidocious-and-more", "supercalifragilisticexpialidocio"),
        ("../../etc/passwd", "etc-passwd"),
    ],
)
def test_name_of_a_task(prompt: str, name: str) -> None:
    assert find_name(prompt) == name


@given(st.text())
def test_every_prompt_has_a_usable_name(prompt: str) -> None:
    assert parse_name(find_name(prompt))


@pytest.mark.parametrize(("what", "verb"), [("prompt", "atoll spawn"), ("message", "atoll tell")])
def test_an_empty_text_names_its_own_verb(what: str, verb: str) -> None:
    with pytest.raises(SpecError, match=f"the {what} is empty") as raised:
        require_prompt(" \n", what=what)
    assert str(raised.value.hint).startswith(verb)


def test_names_are_free() -> None:
    def names(number: int, *taken: str) -> tuple[str, ...]:
        return spawning.find_names(AgentSpec(number=number), "fix auth", "claude", taken)

    assert names(1) == ("fix-auth",)
    assert names(1, "fix-auth", "fix-auth-2") == ("fix-auth-3",)
    assert names(3, "fix-auth-2") == ("fix-auth-1", "fix-auth-3", "fix-auth-4")
    assert spawning.find_names(AgentSpec(), "", "claude", ["claude"]) == ("claude-2",)
    assert spawning.find_names(AgentSpec(name="x", number=2), "p", "c", []) == ("x-1", "x-2")


@given(st.text(min_size=1, max_size=80), st.integers(1, 20))
def test_numbered_names_are_usable(prompt: str, number: int) -> None:
    found = spawning.find_names(AgentSpec(number=number), prompt, "claude", {find_name(prompt)})
    assert len(set(found)) == number
    assert all(map(parse_name, found))


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "is empty"),
        (" \n ", "is empty"),
        (b"\xff\xfe", "not UTF-8"),
        ("\udcff", "not UTF-8"),
        ("a\0b", "null byte"),
        (b"x" * (LIMIT_BYTES + 1), "longer than 4 MiB"),
    ],
)
def test_prompt_that_no_agent_can_get(prompt: str | bytes, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        require_prompt(prompt)


def test_any_other_text_is_a_prompt() -> None:
    for text in ("-x", "--help", "a\nb\n", "x" * LIMIT_BYTES, "\x1b[31m", "{prompt}"):
        assert require_prompt(text) == text


def test_terminal_gets_no_control_characters() -> None:
    assert require_typable("two\nlines\tand é") == "two\nlines\tand é"
    for text in ("\x1b[201~rm", "\x03", "\x9b1m"):
        with pytest.raises(SpecError, match="control characters"):
            require_typable(text)


def test_subject_of_a_commit() -> None:
    assert subject_of("\n fix it \nmore") == "fix it"
    assert len(subject_of("word " * 40)) == 72
    assert "\x1b" not in subject_of("\x1b[31mred")


def test_agent_without_network_is_not_named_by_a_capsule_that_does_not_exist() -> None:
    chosen = SimpleNamespace(name="claude", login=object())
    planned = SimpleNamespace(chosen=chosen)
    isolation = SimpleNamespace(network="none", setup_network="none")
    capsule = SimpleNamespace(name="a-b", level="sandbox", isolation=isolation)
    with pytest.raises(IsolationError, match="network mode `none`") as raised:
        spawning.require_possible(planned, capsule)  # type: ignore[arg-type]
    assert "a-b" not in raised.value.message
