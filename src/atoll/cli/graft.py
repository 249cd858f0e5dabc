"""`atoll graft`: a new candidate, made of parts of others."""

from __future__ import annotations

import click

from atoll.cli.comparison_text import checks_word
from atoll.cli.frame import Frame, verb
from atoll.engine import shapes


@click.command("graft")
@click.argument("race")
@click.argument("parts", nargs=-1, required=True, metavar="NAME[:PATH]...")
@click.option("--name", help="The name of the new candidate; default: RACE-graft-N.")
@verb
def command(frame: Frame, race: str, parts: tuple[str, ...], *, name: str | None) -> int:
    """Make a new candidate of RACE from parts of others, and check it as the others.

    Each part is what a candidate changed at a path, or everything that it changed. Two parts that
    change a file differently are refused. Exit code 1: a check does not pass.
    """
    results = frame.project().races.require(race).results
    made = results.graft(
        parts,
        name=name,
        on_progress=lambda done, total: frame.output.doing(f"checked {done} of {total}", race),
    )
    frame.output.answer("graft", shapes.graft(made), made.candidate.name)
    word = checks_word(shapes.graft(made)["checks"], "done")
    frame.output.note(f"checks of `{made.candidate.name}`: {word}\nhint: atoll compare {race}")
    return 0 if made.is_good else 1
