"""`atoll code`: an editor with windows of its own in a capsule's view."""

from __future__ import annotations

import os

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.run import choose_cwd, run_foreground
from atoll.cli.status import status_option
from atoll.engine import places
from atoll.engine.editors import find_window_editor
from atoll.engine.runs import RunSpec


@click.command("code", options_metavar="[OPTIONS]")
@name_argument
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--with", "chosen", metavar="PROGRAM", help="Another editor, such as pycharm.")
@status_option
@verb
def command(frame: Frame, name: str, paths: tuple[str, ...], chosen: str | None) -> int:
    """Opens NAME in VS Code or a JetBrains IDE, and waits until its window is closed."""
    capsule = frame.capsule(name)
    place = choose_cwd(frame, capsule, None)
    here = places.relative_place(frame.project().root, os.getcwd())
    named = [os.path.join(here, path) for path in paths]
    words = find_window_editor(capsule.session, capsule.record, named, chosen)
    return run_foreground(frame, capsule, RunSpec(argv=words, cwd=place), owner=True)
