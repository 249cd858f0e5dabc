"""`atoll gc`: remove leftovers of crashed commands and unused data."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, verb
from atoll.engine import shapes
from atoll.engine.home import Home
from atoll.model.names import printable


@click.command("gc")
@click.option("--dry-run", is_flag=True, help="Print what would be removed.")
@click.option(
    "--gone",
    is_flag=True,
    help="Also remove capsules whose repository was deleted; their work is stored.",
)
@click.option("--all", "bases", is_flag=True, help="Also remove all bases that no capsule uses.")
@verb
def command(frame: Frame, *, dry_run: bool, gone: bool, bases: bool) -> None:
    """Remove leftovers of crashed commands and data that no capsule needs, in all projects.

    The base of a project without capsules is removed after seven days, or at once with --all; the
    next capsule creates it again. Recovery points are never removed.
    """
    frame.make_room(everything=True)
    if not dry_run:
        _repair(frame)
    home = frame.home()
    found = home.collect(dry_run=dry_run, gone=gone, bases=bases)
    lines = [f"{kind}: {item}" for kind, items in found._asdict().items() for item in items]
    frame.output.answer("collected", shapes.collected(found), "\n".join(map(printable, lines)))
    if not lines:
        frame.output.note("nothing to remove")
    if found.recovered and gone:
        frame.output.note("hint: atoll recover --gone")
    if left := home.orphans():
        names = ", ".join(f"`{capsule.name}`" for capsule in left)
        frame.output.note(
            f"the repository of {names} was deleted\n"
            "hint: atoll gc --gone stores their work and removes them"
        )


def _repair(frame: Frame) -> None:
    """Restores a lost or damaged database first."""
    done = Home.repair(warn=frame.output.warn)
    if done is None:
        return
    source = f"the backup `{done.backup}`" if done.backup else "the files of the capsules"
    frame.output.warn(f"{done.reason}\nrestored it from {source}")
    if done.kept is not None:
        frame.output.note(f"the damaged files are kept in `{done.kept}`")
    if done.has_secrets:
        frame.output.note(
            "no capsule has a secret any more: grants may have been revoked since the backup\n"
            "hint: atoll secret ls, then: atoll secret grant NAME CAPSULE"
        )
