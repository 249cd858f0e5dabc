"""`atoll gc`: removes what crashes left behind."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, verb
from atoll.engine import gone as engine_gone
from atoll.engine import reaper
from atoll.model.names import printable


@click.command("gc")
@click.option("--dry-run", is_flag=True, help="Print what would be removed.")
@click.option(
    "--gone", is_flag=True, help="Also capsules whose repository is gone; their work is stored."
)
@click.option(
    "--all", "bases", is_flag=True, help="Also bases that no capsule uses, however recent."
)
@verb
def command(frame: Frame, *, dry_run: bool, gone: bool, bases: bool) -> None:
    """Removes what crashed commands left and what no capsule needs, in all projects.

    The base of a project without capsules is removed after seven days, or at once with --all; the
    next capsule freezes it again. Recovery points are never touched.
    """
    frame.make_room(everything=True)
    if not dry_run:
        _repair(frame)
    session = frame.session()
    found = reaper.collect(session, dry_run=dry_run, gone=gone, bases=bases)
    data = {
        "capsules": list(found.capsules),
        "runs": list(found.runs),
        "files": list(found.files),
        "recovered": list(found.recovered),
        "restored": list(found.restored),
    }
    lines = [f"{kind}: {item}" for kind, items in data.items() for item in items]
    frame.output.answer("collected", data, "\n".join(map(printable, lines)))
    if not lines:
        frame.output.note("nothing to remove")
    if found.recovered and gone:
        frame.output.note("hint: atoll recover --gone")
    if left := engine_gone.orphans(session):
        names = ", ".join(f"`{capsule.name}`" for capsule in left)
        frame.output.note(
            f"the repository of {names} is gone\n"
            "hint: atoll gc --gone stores their work and removes them"
        )


def _repair(frame: Frame) -> None:
    """Before anything else: a database that is lost or damaged is made again."""
    done = frame.repair()
    if done is None:
        return
    source = f"the backup `{done.backup}`" if done.backup else "what the capsules left"
    frame.output.warn(f"{done.reason}\nrestored it from {source}")
    if done.kept is not None:
        frame.output.note(f"the damaged files are kept in `{done.kept}`")
