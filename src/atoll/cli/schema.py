"""`atoll schema`: the JSON schema of atoll.toml."""

from __future__ import annotations

import json

import click

from atoll.cli.frame import Frame, verb
from atoll.engine.home import Home


@click.command("schema")
@verb
def command(frame: Frame) -> None:
    """Print the JSON schema of atoll.toml, for editors."""
    schema = Home.schema()
    frame.output.answer("schema", schema, json.dumps(schema, indent=2))
