"""`atoll export`: a capsule's commits become a branch of the owner's repository."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.engine import shapes


@click.command("export")
@name_argument
@click.option("--all", "everything", is_flag=True, help="Include uncommitted changes, as a commit.")
@verb
def command(frame: Frame, name: str, *, everything: bool) -> None:
    """Copy the commits of NAME to the branch atoll/NAME. Atoll also does this after every run."""
    found = frame.capsule(name).export(everything=everything)
    frame.output.answer("export", shapes.export(found), found.commit)
    state = "is at" if found.moved else "was already at"
    frame.output.note(f"`{found.branch}` {state} {found.commit[:10]}\nhint: git log {found.branch}")
