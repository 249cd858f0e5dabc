"""`atoll ports`: show the host ports and URLs of a capsule's ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.output import Output

if TYPE_CHECKING:
    from atoll.engine.projects import Project
    from atoll.model.shapes import PortReport, PortShape, RefusedPortsShape

_COLUMNS = ("capsule", "name", "inside", "dynamic", "canonical", "url", "state")


@click.command("ports")
@name_argument
@verb
def command(frame: Frame, name: str | None) -> None:
    """Show the host port on 127.0.0.1 and the URL of each port of NAME, or of all capsules.

    CANONICAL is the same port number on 127.0.0.1, while the capsule is checked out.
    """
    project = frame.project()
    capsule = None if name is None else project.capsule(name)
    show_ports(frame.output, project, project.ports(capsule), name)


command.params[0].required = False


def show_ports(output: Output, project: Project, data: PortReport, name: str | None = None) -> None:
    """Prints the daemon's port report, also for `checkout`."""
    rows = [_cells(row) for row in data["ports"]]
    output.table("ports", data, _COLUMNS, rows, is_whole=True)
    trouble = data["router"]["trouble"]
    refused = None
    if trouble:
        refused = f"URLs do not work: {trouble}\nhint: {project.router_cure(data)}"
    for text in (data["note"], refused, *data["missing"]):
        if text:
            output.note(text)
    if data["not_canonical"]:
        output.note(_render_refused(data["not_canonical"]))
    if data["more"]:
        hint = "\nhint: atoll ports NAME" if name is None else ""
        output.note(f"{data['more']} more ports are not shown{hint}")
    if data["shared"]:
        output.note(
            "other users of this machine can connect\nhint: ATOLL_SHARE_PORTS=off atoll ports"
        )
    if not rows:
        output.note("no port is declared in atoll.toml, and no process is listening")


def _render_refused(refused: RefusedPortsShape) -> str:
    """The ports of the checked-out capsule that are not published under their own numbers."""
    lines = [f"port {row['port']} is not published on 127.0.0.1: {row['reason']}"
             for row in refused["ports"]]  # fmt: skip
    if refused["more"]:
        lines.append(f"{refused['more']} more listening ports are not published")
    if refused["command"]:
        lines.append(f"hint: {refused['command']}")
    return "\n".join(lines)


def _cells(row: PortShape) -> list[str]:
    values = (row["capsule"], row["name"], row["inside"], row["dynamic"], row["canonical"],
              row["url"], row["state"])  # fmt: skip
    return ["-" if value is None else str(value) for value in values]
