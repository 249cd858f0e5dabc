"""`atoll snapshot`: a point to which a whole capsule can return."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.engine import shapes


@click.command("snapshot")
@name_argument
@click.option("-m", "--message", default="", help="Description of the snapshot.")
@click.option(
    "--auto/--no-auto",
    "automatic",
    default=None,
    help="Take a snapshot before every run from now on. --no-auto turns this off.",
)
@verb
def command(frame: Frame, name: str, message: str, *, automatic: bool | None) -> None:
    """Take a snapshot of NAME: workspace, git state, private HOME and TMPDIR."""
    capsule = frame.capsule(name)
    if automatic is not None:
        capsule.set_automatic(automatic=automatic)
        state = "on" if automatic else "off"
        frame.output.note(f"automatic snapshots of `{name}` are {state}")
    if automatic is False:
        frame.output.answer("snapshot", None, "")
        return
    made = capsule.snapshot(message)
    frame.output.answer("snapshot", shapes.snapshot(made), str(made.number))
    frame.output.note(f"hint: atoll rollback {name} {made.number}")
