"""`atoll shell`: an interactive shell inside a capsule."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.run import choose_cwd, cwd_option, run_foreground
from atoll.cli.status import status_option
from atoll.engine.capsules import RunSpec


@click.command("shell")
@name_argument
@cwd_option
@status_option
@verb
def command(frame: Frame, name: str, cwd: str | None) -> int:
    """Open your shell inside the capsule NAME, and exit with its code."""
    frame.make_room(everything=False)
    capsule = frame.capsule(name)
    place = choose_cwd(frame, capsule, cwd)
    return run_foreground(frame, capsule, RunSpec(argv=(capsule.shell(),), cwd=place))
