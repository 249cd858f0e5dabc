"""`atoll levels`: the isolation spectrum."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, verb
from atoll.engine.levels import DEFAULT, LEVELS, Level, find_problems


@click.command("levels")
@verb
def command(frame: Frame) -> None:
    """Shows what each level isolates, what not, what it costs, and whether it works here."""
    frame.output.table(
        "levels",
        [
            {
                "name": level.name,
                "default": level.name == DEFAULT,
                "isolates": level.isolates,
                "shares": level.shares,
                "cost": level.cost,
                "here": not find_problems(level),
                "problems": [problem.what for problem in find_problems(level)],
            }
            for level in LEVELS
        ],
        ("level", "isolates", "shares with the host", "cost", "here"),
        (
            (_name(level), level.isolates, level.shares, level.cost, _here(level))
            for level in LEVELS
        ),
    )


def _name(level: Level) -> str:
    return f"{level.name} (default)" if level.name == DEFAULT else level.name


def _here(level: Level) -> str:
    problems = find_problems(level)
    return "yes" if not problems else "no: " + "; ".join(problem.what for problem in problems)
