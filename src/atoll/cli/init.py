"""`atoll init`: write a commented atoll.toml."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, verb
from atoll.engine import shapes
from atoll.model.names import printable


@click.command("init")
@click.option("--dry-run", is_flag=True, help="Print the file instead of writing it.")
@verb
def command(frame: Frame, *, dry_run: bool) -> None:
    """Detect languages, lock files, scripts and tools; write atoll.toml and approve it."""
    project = frame.project()
    text = project.draft()
    if not dry_run:
        project.init(text)
        frame.output.note(f"wrote and approved {printable(str(project.root))}/atoll.toml")
    data = shapes.init(str(project.root / "atoll.toml"), text, is_written=not dry_run)
    frame.output.answer("init", data, text.rstrip("\n"))
