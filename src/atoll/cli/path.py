"""`atoll path`: print the path of a capsule's workspace."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.engine import shapes


@click.command("path")
@name_argument
@verb
def command(frame: Frame, name: str) -> None:
    """Print a host path through which the workspace of NAME can be opened."""
    path = str(frame.capsule(name).path)
    frame.output.answer("path", shapes.path(path), path)
    if path.startswith("/proc/"):
        # A program that resolves this link by name ends up in the owner's checkout.
        frame.output.note(f"hint: for an editor or git: atoll edit {name}; atoll code {name}")
