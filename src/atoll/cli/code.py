"""`atoll code`: open a capsule in a graphical editor."""

from __future__ import annotations

import os

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.run import choose_cwd, run_foreground
from atoll.cli.status import status_option
from atoll.engine.capsules import RunSpec


@click.command("code", options_metavar="[OPTIONS]")
@name_argument
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--with", "chosen", metavar="PROGRAM", help="Use this editor, e.g. pycharm.")
@status_option
@verb
def command(frame: Frame, name: str, paths: tuple[str, ...], chosen: str | None) -> int:
    """Open NAME in VS Code or a JetBrains IDE, and wait until the window is closed."""
    capsule = frame.capsule(name)
    place = choose_cwd(frame, capsule, None)
    here = frame.project().relative_path(os.getcwd())
    named = [os.path.join(here, path) for path in paths]
    words = capsule.window_editor(named, program=chosen)
    return run_foreground(frame, capsule, RunSpec(argv=words, cwd=place), owner=True)
