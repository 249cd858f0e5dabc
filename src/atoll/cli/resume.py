"""`atoll resume`: resumes a paused capsule."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb


@click.command("resume")
@name_argument
@verb
def command(frame: Frame, name: str) -> None:
    """Resume all processes of NAME. Does nothing if it is not paused."""
    capsule = frame.capsule(name)
    count = capsule.resume()
    frame.output.answer("capsule", {"name": capsule.name, "paused": False, "processes": count}, "")
    frame.output.note(f"`{name}` is resumed (processes: {count})")
