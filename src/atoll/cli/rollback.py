"""`atoll rollback`: returns to a point."""

from __future__ import annotations

import click

from atoll.cli import shapes
from atoll.cli.frame import Frame, name_argument, verb


@click.command("rollback")
@name_argument
@click.argument("snapshot", required=False)
@click.option("--stop", is_flag=True, help="End what runs first.")
@verb
def command(frame: Frame, name: str, snapshot: str | None, *, stop: bool) -> None:
    """Returns NAME to SNAPSHOT, or to its latest. How it was becomes a snapshot, too."""
    capsule = frame.capsule(name)
    target = capsule.require_snapshot(snapshot)
    if stop:
        capsule.stop()
    before = capsule.rollback(target)
    data = {"to": shapes.snapshot(target), "before": shapes.snapshot(before)}
    frame.output.answer("rollback", data, str(target.number))
    frame.output.note(
        f"`{name}` is as it was at snapshot {target.number}\n"
        f"hint: atoll rollback {name} {before.number} undoes this"
    )
