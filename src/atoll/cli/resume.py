"""`atoll resume`: resumes a paused capsule."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.engine import shapes


@click.command("resume")
@name_argument
@verb
def command(frame: Frame, name: str) -> None:
    """Resume all processes of NAME. Does nothing if it is not paused."""
    capsule = frame.capsule(name)
    count = capsule.resume()
    frame.output.answer("capsule", shapes.paused(capsule.name, count, is_paused=False), "")
    frame.output.note(f"`{name}` is resumed (processes: {count})")
