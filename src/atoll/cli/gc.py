"""`atoll gc`: removes what crashes left behind."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, verb
from atoll.engine import reaper


@click.command("gc")
@click.option("--dry-run", is_flag=True, help="Print what would be removed.")
@click.option(
    "--gone", is_flag=True, help="Also capsules whose repository is gone; their files are kept."
)
@verb
def command(frame: Frame, *, dry_run: bool, gone: bool) -> None:
    """Removes what crashed commands left, in all projects. Recovery points are never touched."""
    frame.make_room(everything=True)
    if not dry_run:
        _repair(frame)
    session = frame.session()
    found = reaper.collect(session, dry_run=dry_run, gone=gone)
    data = {
        "capsules": list(found.capsules),
        "runs": list(found.runs),
        "files": list(found.files),
        "recovered": list(found.recovered),
        "restored": list(found.restored),
    }
    lines = [f"{kind}: {item}" for kind, items in data.items() for item in items]
    frame.output.answer("collected", data, "\n".join(lines))
    if not lines:
        frame.output.note("nothing to remove")
    if left := reaper.orphans(session):
        names = ", ".join(f"`{capsule.name}`" for capsule in left)
        frame.output.note(f"the repository of {names} is gone\nhint: atoll gc --gone")


def _repair(frame: Frame) -> None:
    """Before anything else: a database that is lost or damaged is made again."""
    done = frame.repair()
    if done is None:
        return
    source = f"the backup `{done.backup}`" if done.backup else "what the capsules left"
    frame.output.warn(f"{done.reason}\nrestored it from {source}")
    if done.kept is not None:
        frame.output.note(f"the damaged files are kept in `{done.kept}`")
