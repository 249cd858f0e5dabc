"""`atoll schema`: the JSON schema of atoll.toml."""

from __future__ import annotations

import json

import click

from atoll.cli.frame import Frame, verb
from atoll.engine.config import project_schema


@click.command("schema")
@verb
def command(frame: Frame) -> None:
    """Prints the JSON schema of atoll.toml, for editors. With --json in the usual envelope."""
    schema = project_schema()
    frame.output.answer("schema", schema, json.dumps(schema, indent=2))
