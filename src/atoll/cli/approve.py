"""`atoll approve`: approve the tree that waits at a stage."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.engine import shapes
from atoll.model.names import printable


@click.command("approve")
@name_argument
@click.argument("stage")
@verb
def command(frame: Frame, name: str, stage: str) -> None:
    """Approve the tree with which NAME waits at STAGE. Another tree needs another approval."""
    given = frame.project().promotions.approve(name, stage)
    text = f"{given.stage}: tree {given.tree[:10]} approved by {given.by}"
    frame.output.answer("approval", shapes.approval(given), printable(text))
    frame.output.note(f"hint: atoll promote {name} --to {stage}")
