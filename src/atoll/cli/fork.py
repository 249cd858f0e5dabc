"""`atoll fork`: a new capsule from a point of another."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.engine import shapes


@click.command("fork")
@name_argument
@click.argument("new")
@click.option(
    "--at", "snapshot", metavar="SNAPSHOT", help="Use this snapshot; default: the current state."
)
@verb
def command(frame: Frame, name: str, new: str, snapshot: str | None) -> None:
    """Create the capsule NEW as a copy of NAME, on the branch atoll/NEW."""
    capsule = frame.capsule(name)
    at = capsule.require_snapshot(snapshot) if snapshot is not None else None
    made = frame.project().fork(capsule, new, at=at)
    frame.output.answer("capsule", shapes.capsule(made.record), made.name)
    frame.output.note(f"created `{made.name}` from `{name}`")
