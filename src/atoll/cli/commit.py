"""`atoll commit`: everything in a capsule becomes a commit on its branch."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.engine import work


@click.command("commit")
@name_argument
@click.option("-m", "--message", required=True, help="The commit's message.")
@click.option("--no-verify", is_flag=True, help="Do not run the project's own hooks.")
@verb
def command(frame: Frame, name: str, message: str, *, no_verify: bool) -> None:
    """Commits everything in NAME, untracked files too, on the branch atoll/NAME."""
    capsule = frame.capsule(name)
    commit = work.commit(capsule, message, verify=not no_verify)
    data = {"commit": commit, "branch": capsule.record.branch}
    frame.output.answer("commit", data, commit)
    frame.output.note(f"hint: git log {capsule.record.branch}")
