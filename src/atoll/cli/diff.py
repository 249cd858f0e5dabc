"""`atoll diff`: what a capsule has changed."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.output import stdout_is_colored
from atoll.engine import work


@click.command("diff")
@name_argument
@click.option("--stat", is_flag=True, help="Only how much changed in which file.")
@verb
def command(frame: Frame, name: str, *, stat: bool) -> None:
    """Shows all that NAME has changed since it was made: committed or not, tracked or not."""
    color = stdout_is_colored() and not frame.output.json
    text = work.diff(frame.capsule(name), stat=stat, color=color)
    if frame.output.json:
        frame.output.answer("diff", {"diff": text.decode(errors="replace")}, "")
    else:
        frame.output.raw("out", text)
