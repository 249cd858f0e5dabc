"""`atoll recover`: list and restore recovery points of removed capsules."""

from __future__ import annotations

from pathlib import Path

import click

from atoll.cli import phrases
from atoll.cli.frame import Frame, verb
from atoll.engine import shapes
from atoll.model.state import RecoveryPoint


@click.command("recover")
@click.argument("point", required=False)
@click.option(
    "--as", "name", metavar="NAME", help="Name of the new capsule; default: the former name."
)
@click.option("--gone", is_flag=True, help="Use the recovery points of deleted repositories.")
@click.option("--to", metavar="DIR", help="With --gone: restore POINT as a new repository in DIR.")
@click.option("--drop", is_flag=True, help="Delete POINT permanently instead of restoring it.")
@click.option("--dry-run", is_flag=True, help="Print which point would be restored or deleted.")
@verb
def command(
    frame: Frame,
    point: str | None,
    name: str | None,
    *,
    gone: bool,
    to: str | None,
    drop: bool,
    dry_run: bool,
) -> None:
    """List recovery points, or restore POINT (an id or the capsule's former name) as a capsule."""
    if to is not None and (point is None or not gone or drop):
        raise click.UsageError("`--to` needs `--gone` and a POINT to restore")
    if point is None:
        _list(frame, gone=gone)
        return
    found = frame.home().require_point(point) if gone else frame.project().require_point(point)
    if dry_run:
        line = f"{'drop' if drop else 'restore'} {found.id} ({found.commit[:10]})"
        frame.output.answer("plan", [line], line)
    elif drop:
        _drop(frame, found)
    elif to is not None:
        place = frame.home().write_checkout(found, to)
        frame.output.answer("restored", shapes.path(place), place)
        frame.output.note(f"restored `{found.id}`\nhint: git -C {to} status")
        _name_stashes(frame, found, f"git -C {to}")
    else:
        _restore(frame, found, name)


def _drop(frame: Frame, found: RecoveryPoint) -> None:
    if found.repository:
        frame.home().drop(found)
    else:
        frame.project().drop(found)
    frame.output.answer("dropped", shapes.recovery_point(found), found.id)


def _restore(frame: Frame, found: RecoveryPoint, name: str | None) -> None:
    project = frame.project()
    capsule = project.recover(found, name or found.capsule)
    frame.output.answer("capsules", [shapes.capsule(capsule.record)], capsule.name)
    frame.output.note(f"restored `{found.id}`\nhint: atoll diff {capsule.name}")
    _name_stashes(frame, found, f"atoll run {capsule.name} -- git")
    if found.files is not None:
        is_back = project.has_restorable_files(found)
        what = "files that git cannot store were restored from" if is_back else "files are kept in"
        frame.output.note(f"{what} {found.files}")


def _name_stashes(frame: Frame, found: RecoveryPoint, git: str) -> None:
    """Names the stash commits: they are restored, but git's list of stash entries is not."""
    if found.stashes:
        shown = ", ".join(commit[:12] for commit in found.stashes)
        # In full: git takes an abbreviation that has only digits for an index.
        hint = f"{git} stash apply {found.stashes[0]}"
        frame.output.note(f"stash entries, newest first: {shown}\nhint: {hint}")


def _list(frame: Frame, *, gone: bool) -> None:
    lost = frame.home().recovery_points() if gone else frame.project().lost_points()
    points = lost if gone else frame.project().recovery_points()
    more = ("project",) if gone else ()
    frame.output.table(
        "recovery-points",
        [shapes.recovery_point(point) for point in points],
        ("id", "capsule", "stored", "commit", *more),
        (_row(point, gone=gone) for point in points),
    )
    if not points:
        frame.output.note("no recovery points")
    if lost and gone:
        frame.output.note("hint: atoll recover --gone ID --to DIR")
    elif lost:
        count = len(lost)
        noun = "point" if count == 1 else "points"
        frame.output.note(
            f"{count} recovery {noun} of deleted repositories\nhint: atoll recover --gone"
        )


def _row(point: RecoveryPoint, *, gone: bool) -> tuple[str, ...]:
    row = (point.id, point.capsule, phrases.moment(point.stored_at), point.commit[:10])
    # A stand-in repository is named after its project, with a hash of the project's path.
    return (*row, Path(point.repository).stem.rpartition("-")[0]) if gone else row
