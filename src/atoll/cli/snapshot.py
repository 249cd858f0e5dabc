"""`atoll snapshot`: a point to which a whole capsule can return."""

from __future__ import annotations

import click

from atoll.cli import shapes
from atoll.cli.frame import Frame, name_argument, verb


@click.command("snapshot")
@name_argument
@click.option("-m", "--message", default="", help="What this point is.")
@click.option(
    "--auto/--no-auto", "automatic", default=None, help="From now on before every run, or not."
)
@verb
def command(frame: Frame, name: str, message: str, *, automatic: bool | None) -> None:
    """Makes a point of NAME: workspace, git, private HOME and TMPDIR as one."""
    capsule = frame.capsule(name)
    if automatic is not None:
        capsule.set_automatic(automatic=automatic)
        when = "before every run" if automatic else "only when asked for"
        frame.output.note(f"snapshots of `{name}` are taken {when}")
    if automatic is False:
        frame.output.answer("snapshot", None, "")
        return
    made = capsule.snapshot(message)
    frame.output.answer("snapshot", shapes.snapshot(made), str(made.number))
    frame.output.note(f"hint: atoll rollback {name} {made.number}")
