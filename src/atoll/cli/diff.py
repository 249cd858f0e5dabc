"""`atoll diff`: what a capsule has changed."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.harmless import clean
from atoll.cli.output import paint, stdout_is_terminal
from atoll.engine import shapes
from atoll.engine.capsules import Capsule
from atoll.model.state import Patch

_COLORS = {"+": "green", "-": "red", "@": "cyan"}


@click.command("diff")
@name_argument
@click.argument("snapshot", required=False)
@click.option("--stat", is_flag=True, help="Show only the number of changed lines per file.")
@verb
def command(frame: Frame, name: str, snapshot: str | None, *, stat: bool) -> None:
    """Show all changes in NAME since it was created or since SNAPSHOT, including uncommitted
    changes and untracked files.
    """
    capsule = frame.capsule(name)
    since = capsule.require_snapshot(snapshot) if snapshot is not None else None
    patch = capsule.diff(since=since, stat=stat)
    text = patch.text
    _warn(frame, capsule, patch)
    if frame.output.json:
        frame.output.answer("diff", shapes.patch(patch), "")
    elif stdout_is_terminal():
        # Control characters must not reach a terminal; in a pipe the patch stays exact.
        frame.output.answer("diff", None, painted_patch(text))
    else:
        frame.output.raw("out", text)


def painted_patch(text: bytes) -> str:
    """A patch for a terminal: without control characters, in colours."""
    return "\n".join(map(_painted, clean(text).rstrip("\n").split("\n")))


def _warn(frame: Frame, capsule: Capsule, patch: Patch) -> None:
    """Reports what the patch does not show."""
    if patch.refused:
        frame.output.note(f"the commits of `{capsule.name}` are not shown: {patch.refused}")
    if patch.left_out:
        frame.output.note(
            f"not shown: {_some(patch.left_out)}, which git cannot store (nested repositories or "
            "unreadable files)"
        )
    if patch.ignored:
        frame.output.note(
            f"a `.gitignore` was changed: {patch.ignored} ignored entries are not shown"
        )
    if patch.concealed:
        base = capsule.record.base_commit[:12]
        frame.output.note(
            f"the commits contain another version of {_some(patch.concealed)} than the workspace\n"
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
