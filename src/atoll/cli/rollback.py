"""`atoll rollback`: returns to a point."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.engine import shapes


@click.command("rollback")
@name_argument
@click.argument("snapshot", required=False)
@click.option("--stop", is_flag=True, help="Stop active runs first.")
@verb
def command(frame: Frame, name: str, snapshot: str | None, *, stop: bool) -> None:
    """Restore NAME to SNAPSHOT; default: the latest. The current state is stored as a snapshot."""
    capsule = frame.capsule(name)
    target = capsule.require_snapshot(snapshot)
    if stop:
        capsule.stop()
    before = capsule.rollback(target)
    frame.output.answer("rollback", shapes.rollback(target, before), str(target.number))
    frame.output.note(
        f"restored `{name}` to snapshot {target.number}\n"
        f"hint: atoll rollback {name} {before.number} undoes this"
    )
