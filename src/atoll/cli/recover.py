"""`atoll recover`: work that was stored before a removal."""

from __future__ import annotations

import click

from atoll.cli import phrases, shapes
from atoll.cli.frame import Frame, verb


@click.command("recover")
@click.argument("point", required=False)
@click.option("--as", "name", metavar="NAME", help="The new capsule's name; default: as it was.")
@click.option("--drop", is_flag=True, help="Forget POINT for good instead of restoring it.")
@click.option("--dry-run", is_flag=True, help="Only say which point would be restored or dropped.")
@verb
def command(
    frame: Frame, point: str | None, name: str | None, *, drop: bool, dry_run: bool
) -> None:
    """Lists recovery points, or restores POINT (an id, or a capsule's former name) as a capsule."""
    project = frame.project()
    if point is None:
        _list(frame)
        return
    found = project.require_point(point)
    if dry_run:
        line = f"{'drop' if drop else 'restore'} {found.id} ({found.commit[:10]})"
        frame.output.answer("plan", [line], line)
        return
    if drop:
        project.drop(found)
        frame.output.answer("dropped", shapes.recovery_point(found), found.id)
        return
    capsule = project.recover(found, name or found.capsule)
    frame.output.answer("capsules", [shapes.capsule(capsule.record)], capsule.name)
    frame.output.note(f"restored `{found.id}`\nhint: atoll diff {capsule.name}")
    if found.files is not None:
        is_back = project.has_restorable_files(found)
        what = "files that git cannot store were restored from" if is_back else "files are kept in"
        frame.output.note(f"{what} {found.files}")


def _list(frame: Frame) -> None:
    points = frame.project().recovery_points()
    frame.output.table(
        "recovery-points",
        [shapes.recovery_point(point) for point in points],
        ("id", "capsule", "stored", "commit"),
        ((p.id, p.capsule, phrases.moment(p.stored_at), p.commit[:10]) for p in points),
    )
    if not points:
        frame.output.note("no recovery points")
