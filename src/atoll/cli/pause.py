"""`atoll pause`: freeze all processes of a capsule."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.engine import shapes


@click.command("pause")
@name_argument
@verb
def command(frame: Frame, name: str) -> None:
    """Freeze all processes of NAME until `atoll resume NAME`."""
    capsule = frame.capsule(name)
    count = capsule.pause()
    frame.output.answer("capsule", shapes.paused(capsule.name, count, is_paused=True), "")
    frame.output.note(f"`{name}` is paused (processes: {count})\nhint: atoll resume {name}")
