"""`atoll shell`: an interactive shell inside a capsule."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.run import run_foreground
from atoll.cli.status import status_option
from atoll.engine.runs import RunSpec
from atoll.engine.shells import find_shell


@click.command("shell")
@name_argument
@status_option
@verb
def command(frame: Frame, name: str) -> int:
    """Opens your shell inside the capsule NAME, and exits with its code."""
    frame.make_room(everything=False)
    return run_foreground(frame, frame.capsule(name), RunSpec(argv=(find_shell(),)))
