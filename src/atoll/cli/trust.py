"""`atoll trust`: approve the current content of atoll.toml."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, verb
from atoll.engine import shapes
from atoll.model.names import printable


@click.command("trust")
@verb
def command(frame: Frame) -> None:
    """Approve the commands and settings in atoll.toml. A changed file must be approved again."""
    config = frame.project().trust()
    if config.file is None:
        return
    lines = [f"approved {config.file.path}"]
    lines += [f"  {claim.key} = {claim.text}" for claim in config.file.claims]
    frame.output.answer("trust", shapes.trust(config.file), "\n".join(map(printable, lines)))
