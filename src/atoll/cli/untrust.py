"""`atoll untrust`: revoke the approval of atoll.toml."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, verb
from atoll.model.names import printable


@click.command("untrust")
@verb
def command(frame: Frame) -> None:
    """Revoke the approval of atoll.toml."""
    project = frame.project()
    was = project.untrust()
    text = "is not approved any more" if was else "was not approved"
    frame.output.answer(
        "untrust", {"was_trusted": was}, f"{printable(str(project.root))}/atoll.toml {text}"
    )
