"""`atoll ports`: where a capsule's ports are reached."""

from __future__ import annotations

from typing import Any

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.output import Output
from atoll.engine import ports, sharing, urls

_COLUMNS = ("capsule", "name", "inside", "dynamic", "canonical", "url", "state")


@click.command("ports")
@name_argument
@verb
def command(frame: Frame, name: str | None) -> None:
    """Shows where each port of NAME, or of all capsules of this project, is reached: on which
    port of 127.0.0.1, by which URL, and under its own number if the capsule is checked out."""
    project = frame.project()
    capsule = None if name is None else project.capsule(name).record
    data = ports.look(project.session, project.record, capsule)
    tell(frame.output, data, name)


command.params[0].required = False


def tell(output: Output, data: dict[str, Any], name: str | None = None) -> None:
    """The daemon's answer about all capsules or one, which `checkout` shows as well."""
    rows = [[_cell(row[column]) for column in _COLUMNS] for row in data["ports"]]
    output.table("ports", data, _COLUMNS, rows, is_whole=True)
    trouble = data["router"]["trouble"]
    refused = None
    if trouble:
        free = urls.find_free(data["router"]["port"])
        refused = f"no URL works: {trouble}\nhint: export {urls.VARIABLE}={free or 'PORT'}"
    for text in (data["note"], refused, *data["missing"]):
        if text:
            output.note(text)
    if data["not_canonical"]:
        output.note(_render_refused(data["not_canonical"]))
    if data["more"]:
        hint = "\nhint: atoll ports NAME" if name is None else ""
        output.note(f"{data['more']} more are not shown: an answer has {len(rows)} at most{hint}")
    if data["shared"]:
        output.note(
            f"other users of this machine may connect\nhint: {sharing.VARIABLE}=off atoll ports"
        )
    if not rows:
        output.note("no port is declared, and nothing listens yet")


def _render_refused(refused: dict[str, Any]) -> str:
    """The ports of the capsule that is checked out that stay off the host's own numbers."""
    lines = [f"port {row['port']} is not taken on 127.0.0.1: {row['reason']}"
             for row in refused["ports"]]  # fmt: skip
    if refused["more"]:
        lines.append(f"{refused['more']} more listening ports are not taken")
    if refused["command"]:
        lines.append(f"hint: {refused['command']}")
    return "\n".join(lines)


def _cell(value: object) -> str:
    return "-" if value is None else str(value)
