"""What the words after `atoll race` mean."""

from __future__ import annotations

import click
import pytest

from atoll.cli import race
from atoll.cli.frame import Common

NOTHING = Common(as_json=False, project=None, quiet=False, verbose=False)


def parse(*words: str) -> tuple[str, dict[str, object], tuple[str, ...]]:
    """The command that is meant, its parameters, and the command line after `--`."""
    parent = click.Context(click.Group("atoll"), info_name="atoll", obj=NOTHING)
    group = race.command.make_context("race", list(words), parent=parent)
    name, found, rest = race.command.resolve_command(group, [*group._protected_args, *group.args])
    assert found is not None
    inner = found.make_context(name, rest, parent=group)
    return name or "start", inner.params, inner.meta.get(race._ARGV, ())


@pytest.mark.parametrize(
    ("words", "prompt", "argv", "stage"),
    [
        (("do it",), ("do it",), (), ""),
        (("do it", "--agents", "a"), ("do it",), (), ""),
        (("--promote", "do it"), ("do it",), (), "local"),
        (("--promote=prod", "do it"), ("do it",), (), "prod"),
        (("--", "ls", "--promote"), (), ("ls", "--promote"), ""),
        (("--json", "--", "make", "--", "x"), (), ("make", "--", "x"), ""),
        (("do it", "--agents", "command", "--", "show", "-x"), ("do it",), ("show", "-x"), ""),
        (("- fix it",), ("- fix it",), (), ""),
    ],
)
def test_a_prompt_or_a_command(
    words: tuple[str, ...], prompt: tuple[str, ...], argv: tuple[str, ...], stage: str
) -> None:
    name, params, line = parse(*words)
    assert (name, params["words"], params["promote_to"], line) == ("start", prompt, stage, argv)


@pytest.mark.parametrize(
    "words",
    [("ls",), ("--json", "ls"), ("--project", "start", "ls"), ("--project=x", "-q", "ls")],
)
def test_a_word_for_a_command(words: tuple[str, ...]) -> None:
    assert parse(*words)[0] == "ls"


def test_name_of_a_race_is_no_command() -> None:
    name, params, _ = parse("show", "ls")
    assert (name, params["name"]) == ("show", "ls")
