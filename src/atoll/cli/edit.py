"""`atoll edit`: a program of the owner's in a capsule's view."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.run import choose_cwd, cwd_option, run_foreground
from atoll.cli.status import status_option
from atoll.engine.editors import find_terminal_editor, needs_walls
from atoll.engine.runs import RunSpec


@click.command("edit", options_metavar="[OPTIONS]")
@name_argument
@click.argument("argv", nargs=-1, metavar="[-- COMMAND...]", type=click.UNPROCESSED)
@cwd_option
@status_option
@verb
def command(frame: Frame, name: str, argv: tuple[str, ...], cwd: str | None) -> int:
    """Opens your editor (VISUAL, EDITOR) where the project is that of NAME.

    With COMMAND it runs that instead, with your own environment.
    """
    capsule = frame.capsule(name)
    place = choose_cwd(frame, capsule, cwd)
    if argv:
        return run_foreground(frame, capsule, RunSpec(argv=argv, cwd=place), owner=True)
    is_inside = needs_walls(capsule.session, capsule.record)
    if is_inside:
        frame.output.note("as root the editor runs inside of the walls, without your settings")
    words = find_terminal_editor(capsule.session, capsule.record)
    return run_foreground(frame, capsule, RunSpec(argv=words, cwd=place), owner=not is_inside)
