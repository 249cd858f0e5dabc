"""`atoll shell`: an interactive shell inside a capsule."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.run import (
    choose_cwd,
    cwd_option,
    environment_options,
    run_foreground,
)
from atoll.cli.status import status_option
from atoll.engine.capsules import RunSpec


@click.command("shell")
@name_argument
@cwd_option
@environment_options
@status_option
@verb
def command(
    frame: Frame, name: str, cwd: str | None, env: tuple[str, ...], env_file: tuple[str, ...]
) -> int:
    """Open your shell inside the capsule NAME, and exit with its code."""
    frame.make_room(everything=False)
    capsule = frame.capsule(name)
    place = choose_cwd(frame, capsule, cwd)
    variables = capsule.parse_variables(env, env_file)
    asked = RunSpec(argv=(capsule.shell(),), cwd=place, private_env=variables)
    return run_foreground(frame, capsule, asked)
