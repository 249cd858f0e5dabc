"""`atoll levels`: the isolation spectrum."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, verb
from atoll.engine.levels import DEFAULT, LEVELS, Level, find_problems
from atoll.model.state import Problem


@click.command("levels")
@verb
def command(frame: Frame) -> None:
    """Shows what each level isolates, what not, what it costs, and whether it works here."""
    home = frame.session().home
    problems = {level.name: find_problems(level, home) for level in LEVELS}
    frame.output.table(
        "levels",
        [
            {
                "name": level.name,
                "default": level.name == DEFAULT,
                "isolates": level.isolates,
                "shares": level.shares,
                "cost": level.cost,
                "here": not problems[level.name],
                "problems": [problem.what for problem in problems[level.name]],
            }
            for level in LEVELS
        ],
        ("level", "isolates", "shares with the host", "cost", "here"),
        (
            (_name(level), level.isolates, level.shares, level.cost, _here(problems[level.name]))
            for level in LEVELS
        ),
    )


def _name(level: Level) -> str:
    return f"{level.name} (default)" if level.name == DEFAULT else level.name


def _here(problems: list[Problem]) -> str:
    return "yes" if not problems else "no: " + "; ".join(problem.what for problem in problems)
