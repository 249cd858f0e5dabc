"""`atoll checkout`: which capsule has the project's own port numbers."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.ports import tell
from atoll.engine import ports


@click.command("checkout")
@name_argument
@click.option(
    "-p",
    "--port",
    "named",
    type=click.IntRange(1, 65_535),
    metavar="PORT",
    multiple=True,
    help="Also take this port; repeat for several.",
)
@click.option("--none", "nobody", is_flag=True, help="Give the ports back.")
@verb
def command(frame: Frame, name: str | None, *, named: tuple[int, ...], nobody: bool) -> None:
    """Gives NAME the ports that the project file declares, on 127.0.0.1. They move from the capsule
    that had them; nothing is restarted, and open connections stay where they are. A port that is
    not declared, is privileged (below 1024) or belongs to a well-known service such as PostgreSQL
    is taken only when `--port` names it; at levels that share the host's network it must be
    declared, too. If another process has one of the ports, none is taken. Example: atoll checkout
    fix --port 5432"""
    if nobody and name is not None:
        raise click.UsageError("`--none` and NAME exclude each other")
    if not nobody and name is None:
        raise click.UsageError("name a capsule, or give the ports back with `--none`")
    if nobody and named:
        raise click.UsageError("`--port` and `--none` exclude each other")
    project = frame.project()
    capsule = None if name is None else project.capsule(name).record
    data = ports.checkout(project.session, project.record, capsule, named)
    tell(frame.output, data, name)
    if capsule is None:
        frame.output.note("no capsule has the project's own ports now")
    elif not any(row["canonical"] for row in data["ports"]):
        frame.output.note(
            "no port was taken: none is declared that may be taken, and none is named"
        )


command.params[0].required = False
