"""`atoll snapshots`: the time line of a capsule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.cli import phrases
from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.output import render_size
from atoll.engine import shapes

if TYPE_CHECKING:
    from atoll.engine.history.snapshots import TimelineEntry


@click.command("snapshots")
@name_argument
@click.option(
    "-n", "count", default=50, type=click.IntRange(0), help="Number of latest snapshots; 0 for all."
)
@verb
def command(frame: Frame, name: str, count: int) -> None:
    """List the snapshots of NAME with their sizes and the changes since the previous one."""
    moments = frame.capsule(name).timeline(count=count or None)
    frame.output.table(
        "snapshots",
        [shapes.moment(moment) for moment in moments],
        ("snapshot", "taken", "size", "changed", "message"),
        (
            (
                str(moment.snapshot.number),
                phrases.moment(moment.snapshot.created_at),
                render_size(moment.bytes),
                _changed(moment),
                _message(moment),
            )
            for moment in moments
        ),
    )
    if not moments:
        frame.output.note(f'no snapshots yet\nhint: atoll snapshot {name} -m "…"')


def _changed(moment: TimelineEntry) -> str:
    if not moment.files and not moment.removed:
        return "nothing"
    names = ", ".join(moment.paths[:2])
    more = "" if moment.files <= len(moment.paths[:2]) else ", …"
    gone = f", {moment.removed} removed" if moment.removed else ""
    files = "1 file" if moment.files == 1 else f"{moment.files} files"
    return files + gone + (f": {names}{more}" if names else "")


def _message(moment: TimelineEntry) -> str:
    snapshot = moment.snapshot
    return snapshot.message or ("before a run" if snapshot.is_automatic else "")
