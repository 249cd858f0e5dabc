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
@click.option("--stat", is_flag=True, help="Only how much changed in which file.")
@verb
def command(frame: Frame, name: str, *, stat: bool) -> None:
    """Shows all that NAME has changed since it was made: committed or not, tracked or not."""
    text = work.diff(frame.capsule(name), stat=stat)
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
