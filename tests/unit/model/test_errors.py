from __future__ import annotations

import re

import pytest

import atoll
from atoll.model import errors
from atoll.model.errors import AtollError, Interrupted, Mistake, SpecError

CODES = {
    "SpecError": 2,
    "PrerequisiteError": 3,
    "StateError": 4,
    "DriverError": 5,
    "IsolationError": 6,
}


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_every_kind_has_its_exit_code(name, code):
    kind = getattr(errors, name)
    error = kind("message", hint="command")
    assert (error.exit_code, error.message, error.hint, str(error)) == (
        code,
        "message",
        "command",
        "message",
    )
    assert isinstance(error, AtollError)
    assert getattr(atoll, name) is kind


def test_signal_is_reported_as_a_shell_does():
    assert Interrupted(2).exit_code == 130
    assert "signal 15" in Interrupted(15).message


def test_tree_in_the_docstring_is_the_tree():
    drawn = re.findall(r"^[├└]── (\w+)", str(errors.__doc__), re.MULTILINE)
    assert sorted(drawn) == sorted(kind.__name__ for kind in direct_children())
    below = re.findall(r"^│ +[├└]── (\w+)", str(errors.__doc__), re.MULTILINE)
    grandchildren = [kind for child in direct_children() for kind in child.__subclasses__()]
    ours = [kind.__name__ for kind in grandchildren if kind.__module__ == errors.__name__]
    assert sorted(below) == sorted(ours)
    codes = dict(re.findall(r"[├└]── (\w+).* exit (\d)$", str(errors.__doc__), re.MULTILINE))
    assert {name: int(code) for name, code in codes.items() if name in CODES} == CODES


def test_kinds_are_distinct():
    kinds = [kind.kind for kind in direct_children()]
    assert len(set(kinds)) == len(kinds)
    assert AtollError.kind not in kinds


def direct_children() -> list[type[AtollError]]:
    return [kind for kind in AtollError.__subclasses__() if kind.__module__ == errors.__name__]


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (
            Mistake(source="atoll.toml", key="capsule.levl", message="unknown key", line=3),
            "atoll.toml:3: `capsule.levl`: unknown key",
        ),
        (
            Mistake(source="atoll.toml", key="a", message="unknown key", suggestion="b"),
            "atoll.toml: `a`: unknown key; did you mean `b`?",
        ),
        (Mistake(source="atoll.toml", key="", message="is not UTF-8"), "atoll.toml: is not UTF-8"),
    ],
)
def test_mistakes_say_where(mistake, text):
    assert mistake.render() == text


def test_all_mistakes_travel_together():
    mistakes = tuple(Mistake(source="f", key=str(n), message="m") for n in range(3))
    assert SpecError("bad", mistakes=mistakes).mistakes == mistakes
    assert SpecError("bad").mistakes == ()
