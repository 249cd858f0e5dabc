"""`atoll checkout`: which capsule has the project's own port numbers."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.ports import tell
from atoll.engine import ports


@click.command("checkout")
@name_argument
@click.option("--none", "nobody", is_flag=True, help="Give the ports back.")
@verb
def command(frame: Frame, name: str | None, *, nobody: bool) -> None:
    """Gives NAME the project's own port numbers on 127.0.0.1, all of them or none. They move from
    the capsule that had them; nothing is restarted, and open connections stay where they are."""
    if nobody == (name is not None):
        raise click.UsageError("name a capsule, or give the ports back with `--none`")
    project = frame.project()
    capsule = None if name is None else project.capsule(name).record
    data = ports.checkout(project.session, project.record, capsule)
    tell(frame.output, data)
    if capsule is None:
        frame.output.note("no capsule has the project's own ports now")


command.params[0].required = False
