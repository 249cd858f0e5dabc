"""`atoll untrust`: revoke the approval of atoll.toml."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, verb
from atoll.engine import shapes
from atoll.model.names import printable


@click.command("untrust")
@verb
def command(frame: Frame) -> None:
    """Revoke the approval of atoll.toml."""
    project = frame.project()
    was = project.untrust()
    text = "is not approved any more" if was else "was not approved"
    shape = shapes.untrust(was_trusted=was)
    frame.output.answer("untrust", shape, f"{printable(str(project.root))}/atoll.toml {text}")
