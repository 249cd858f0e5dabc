"""`atoll commit`: commit all changes of a capsule to its branch."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.engine import shapes


@click.command("commit")
@name_argument
@click.option("-m", "--message", required=True, help="Commit message.")
@click.option("--no-verify", is_flag=True, help="Skip the project's git hooks.")
@verb
def command(frame: Frame, name: str, message: str, *, no_verify: bool) -> None:
    """Commit all changes in NAME, including untracked files, to the branch atoll/NAME."""
    capsule = frame.capsule(name)
    commit = capsule.commit(message, verify=not no_verify)
    frame.output.answer("commit", shapes.commit(commit, capsule.record.branch), commit)
    frame.output.note(f"hint: git log {capsule.record.branch}")
