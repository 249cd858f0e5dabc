"""`atoll checkout`: give a capsule the project's declared ports on 127.0.0.1."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.ports import show_ports


@click.command("checkout")
@name_argument
@click.option(
    "-p",
    "--port",
    "named",
    type=click.IntRange(1, 65_535),
    metavar="PORT",
    multiple=True,
    help="Also publish this port; may be repeated.",
)
@click.option("--none", "release", is_flag=True, help="Release the ports.")
@verb
def command(frame: Frame, name: str | None, *, named: tuple[int, ...], release: bool) -> None:
    """Publish the ports that atoll.toml declares, for NAME, under their own numbers on 127.0.0.1.

    The ports move from the capsule that had them. Nothing is restarted, and open connections are
    not interrupted. Undeclared ports, privileged ports (below 1024) and ports of well-known
    services such as PostgreSQL need `--port`; at levels that share the host's network they must
    also be declared. If another process uses one of the ports, none is published. Example: atoll
    checkout fix --port 5432
    """
    if release and name is not None:
        raise click.UsageError("`--none` and NAME are mutually exclusive")
    if not release and name is None:
        raise click.UsageError("give the name of a capsule, or `--none` to release the ports")
    if release and named:
        raise click.UsageError("`--port` and `--none` are mutually exclusive")
    project = frame.project()
    capsule = None if name is None else project.capsule(name)
    data = project.checkout(capsule, ports=named)
    show_ports(frame.output, project, data, name)
    if capsule is None:
        frame.output.note("no capsule is checked out now")
    elif not any(row["canonical"] for row in data["ports"]):
        frame.output.note("no port was published: declare one in atoll.toml, or use `--port`")


command.params[0].required = False
