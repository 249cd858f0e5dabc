"""Texts on a command line that begin with `-`."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from atoll.cli.frame import MessageCommand


@click.command(cls=MessageCommand)
@click.argument("words", nargs=-1)
@click.option("-n", "number", type=int, default=1)
@click.option("--check", multiple=True)
def command(words: tuple[str, ...], number: int, check: tuple[str, ...]) -> None:
    click.echo(repr((words, number, check)))


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["a", "- fix it"], (("a", "- fix it"), 1, ())),
        (["-- two\nlines"], (("-- two\nlines",), 1, ())),
        (["-n 3 times", "-n", "2"], (("-n 3 times",), 2, ())),
        (["--check", "- x y", "--check=make test"], ((), 1, ("- x y", "make test"))),
        (["--", "-plain"], (("-plain",), 1, ())),
        (["--", "- text", "-n"], (("- text", "-n"), 1, ())),
    ],
)
def test_a_word_with_a_space_is_no_option(args: list[str], found: object) -> None:
    result = CliRunner().invoke(command, args)
    assert (result.exit_code, result.output) == (0, f"{found!r}\n")


def test_a_single_word_is_an_option() -> None:
    assert "No such option" in CliRunner().invoke(command, ["-fix"]).output
