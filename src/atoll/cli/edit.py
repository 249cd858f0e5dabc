"""`atoll edit`: a program of the owner's in a capsule's view."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.run import run_foreground
from atoll.cli.status import status_option
from atoll.engine.runs import RunSpec


@click.command("edit", options_metavar="[OPTIONS]")
@name_argument
@click.argument("argv", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
@status_option
@verb
def command(frame: Frame, name: str, argv: tuple[str, ...]) -> int:
    """Runs COMMAND with your own environment, where the project is that of NAME."""
    return run_foreground(frame, frame.capsule(name), RunSpec(argv=argv), owner=True)
