"""`atoll diff`: what a capsule has changed."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.harmless import clean
from atoll.cli.output import paint, stdout_is_terminal
from atoll.engine import work
from atoll.engine.capsules import Capsule
from atoll.model.state import Patch

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
        patch = work.diff(capsule, stat=stat)
    else:
        patch = work.diff_since(capsule, capsule.require_snapshot(snapshot), stat=stat)
    text = patch.text
    _warn(frame, capsule, patch)
    if frame.output.json:
        data = {
            "diff": text.decode(errors="replace"),
            "concealed": list(patch.concealed),
            "left_out": list(patch.left_out),
            "refused": patch.refused,
            "ignored": patch.ignored,
        }
        frame.output.answer("diff", data, "")
    elif stdout_is_terminal():
        # What a file holds must not steer the terminal; in a pipe a patch stays exact.
        frame.output.answer(
            "diff", None, "\n".join(map(_painted, clean(text).rstrip("\n").split("\n")))
        )
    else:
        frame.output.raw("out", text)


def _warn(frame: Frame, capsule: Capsule, patch: Patch) -> None:
    """What the patch cannot show: commits may hold what the files do not."""
    if patch.refused:
        frame.output.note(f"the commits of `{capsule.name}` are not shown: {patch.refused}")
    if patch.left_out:
        frame.output.note(
            f"not shown: {_some(patch.left_out)}, which git cannot store: a repository of its own, "
            "or closed to you"
        )
    if patch.ignored:
        frame.output.note(
            f"a `.gitignore` was changed: {patch.ignored} ignored entries are not shown"
        )
    if patch.concealed:
        base = capsule.record.base_commit[:12]
        frame.output.note(
            f"commits hold another version of {_some(patch.concealed)} than the files\n"
            f"hint: git diff {base} {capsule.record.branch}"
        )


def _some(paths: tuple[str, ...]) -> str:
    shown = ", ".join(f"`{path}`" for path in paths[:5])
    return shown + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")


def _painted(line: str) -> str:
    if line.startswith(("diff ", "index ", "+++ ", "--- ", "new file", "deleted file")):
        return paint(line, "bold")
    color = _COLORS.get(line[:1])
    return paint(line, color) if color else line
