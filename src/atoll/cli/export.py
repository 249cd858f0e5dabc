"""`atoll export`: a capsule's commits become a branch of the owner's repository."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb


@click.command("export")
@name_argument
@click.option("--all", "everything", is_flag=True, help="With what is not committed, as a commit.")
@verb
def command(frame: Frame, name: str, *, everything: bool) -> None:
    """Brings the commits of NAME out as the branch atoll/NAME. Happens after every run, too."""
    found = frame.capsule(name).export(everything=everything)
    data = {"branch": found.branch, "commit": found.commit, "moved": found.moved}
    frame.output.answer("export", data, found.commit)
    state = "is at" if found.moved else "was already at"
    frame.output.note(f"`{found.branch}` {state} {found.commit[:10]}\nhint: git log {found.branch}")
