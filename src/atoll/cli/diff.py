"""`atoll diff`: what a capsule has changed."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.harmless import clean
from atoll.cli.output import paint, stdout_is_terminal
from atoll.engine import work

_COLORS = {"+": "green", "-": "red", "@": "cyan"}


@click.command("diff")
@name_argument
@click.argument("snapshot", required=False)
@click.option("--stat", is_flag=True, help="Only how much changed in which file.")
@verb
def command(frame: Frame, name: str, snapshot: str | None, *, stat: bool) -> None:
    """Shows all that NAME has changed since it was made, or since SNAPSHOT: committed or not,
    tracked or not.
    """
    capsule = frame.capsule(name)
    if snapshot is None:
        text = work.diff(capsule, stat=stat)
    else:
        text = work.diff_since(capsule, capsule.require_snapshot(snapshot), stat=stat)
    if frame.output.json:
        frame.output.answer("diff", {"diff": text.decode(errors="replace")}, "")
    elif stdout_is_terminal():
        # What a file holds must not steer the terminal; in a pipe a patch stays exact.
        frame.output.answer("diff", None, "\n".join(map(_painted, clean(text).splitlines())))
    else:
        frame.output.raw("out", text)


def _painted(line: str) -> str:
    if line.startswith(("diff ", "index ", "+++ ", "--- ", "new file", "deleted file")):
        return paint(line, "bold")
    color = _COLORS.get(line[:1])
    return paint(line, color) if color else line
