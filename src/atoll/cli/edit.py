"""`atoll edit`: runs a host program in a capsule's view."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.run import choose_cwd, cwd_option, run_foreground
from atoll.cli.status import status_option
from atoll.engine.capsules import RunSpec


@click.command("edit", options_metavar="[OPTIONS]")
@name_argument
@click.argument("argv", nargs=-1, metavar="[-- COMMAND...]", type=click.UNPROCESSED)
@cwd_option
@status_option
@verb
def command(frame: Frame, name: str, argv: tuple[str, ...], cwd: str | None) -> int:
    """Run a host program (such as your editor) with the capsule mounted at the project's path.

    Without COMMAND, run VISUAL or EDITOR. The program has your environment and is not sandboxed.
    For root at level sandbox, the editor runs inside the sandbox, and COMMAND is refused.
    """
    capsule = frame.capsule(name)
    place = choose_cwd(frame, capsule, cwd)
    if argv:
        return run_foreground(frame, capsule, RunSpec(argv=argv, cwd=place), owner=True)
    is_inside = capsule.editor_needs_walls
    if is_inside:
        frame.output.note(
            "running as root: the editor runs inside the sandbox, without your settings"
        )
    asked = RunSpec(argv=capsule.terminal_editor(), cwd=place)
    return run_foreground(frame, capsule, asked, owner=not is_inside)
