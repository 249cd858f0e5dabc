"""`atoll levels`: list the isolation levels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.cli.frame import Frame, verb
from atoll.engine import shapes
from atoll.model.state import Problem

if TYPE_CHECKING:
    from atoll.engine.project.levels import Level


@click.command("levels")
@verb
def command(frame: Frame) -> None:
    """List what each level isolates and shares, its cost, and whether this host supports it."""
    found = frame.home().levels()
    frame.output.table(
        "levels",
        [shapes.level(level, problems) for level, problems in found],
        ("level", "isolates", "shares with the host", "cost", "here"),
        (
            (_name(level), level.isolates, level.shares, level.cost, _here(problems))
            for level, problems in found
        ),
    )


def _name(level: Level) -> str:
    return f"{level.name} (default)" if level.is_default else level.name


def _here(problems: list[Problem]) -> str:
    return "yes" if not problems else "no: " + "; ".join(problem.what for problem in problems)
