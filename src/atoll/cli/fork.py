"""`atoll fork`: a new capsule from a point of another."""

from __future__ import annotations

import click

from atoll.cli import shapes
from atoll.cli.frame import Frame, name_argument, verb


@click.command("fork")
@name_argument
@click.argument("new")
@click.option(
    "--at", "snapshot", metavar="SNAPSHOT", help="From this point; default: as it is now."
)
@verb
def command(frame: Frame, name: str, new: str, snapshot: str | None) -> None:
    """Makes the capsule NEW from NAME, with all that is in it, on the branch atoll/NEW."""
    capsule = frame.capsule(name)
    at = capsule.require_snapshot(snapshot) if snapshot is not None else None
    made = frame.project().fork(capsule, new, at=at)
    frame.output.answer("capsule", shapes.capsule(made.record), made.name)
    frame.output.note(f"made `{made.name}` from `{name}`")
