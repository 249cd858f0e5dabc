"""`atoll rm`: removes capsules; nothing is lost."""

from __future__ import annotations

import click

from atoll.cli import phrases
from atoll.cli.frame import Frame, names_argument, verb
from atoll.engine import shapes
from atoll.engine.capsules import Capsule
from atoll.model.names import printable


@click.command("rm")
@names_argument
@click.option(
    "--force", is_flag=True, help="Stop runs and store unexported work as a recovery point first."
)
@click.option("--keep-branch", is_flag=True, help="Keep the branch atoll/NAME.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed and stored.")
@verb
def command(
    frame: Frame, names: tuple[str, ...], *, force: bool, keep_branch: bool, dry_run: bool
) -> None:
    """Remove capsules. Without --force, refuse if a capsule has work that exists nowhere else."""
    frame.make_room(everything=True)
    capsules = [frame.capsule(name) for name in dict.fromkeys(names)]
    if dry_run:
        _show_plan(frame, capsules, keep_branch=keep_branch)
        return
    removed = []
    project = frame.project()
    for capsule, point in project.remove(capsules, force=force, keep_branch=keep_branch):
        removed.append(shapes.removed(capsule.name, point))
        if point is not None:
            frame.output.note(phrases.stored(point))
    frame.output.answer("removed", removed, "\n".join(capsule.name for capsule in capsules))


def _show_plan(frame: Frame, capsules: list[Capsule], *, keep_branch: bool) -> None:
    lines, data = [], []
    for capsule in capsules:
        work, living = capsule.work(keep_branch=keep_branch), capsule.living()
        data.append(shapes.removal(capsule.record, living, work, keep_branch=keep_branch))
        lines += [f"{capsule.name}: {act}" for act in _acts(capsule, keep_branch=keep_branch)]
        lines += [f"{capsule.name}: stop {run.label}, with --force" for run in living]
        lines += [f"{capsule.name}: store {line}, with --force" for line in work.render()]
        if work.ignored:
            lines.append(f"{capsule.name}: remove ignored entries: {work.ignored}")
    frame.output.answer("removal", data, "\n".join(map(printable, lines)))


def _acts(capsule: Capsule, *, keep_branch: bool) -> list[str]:
    if capsule.record.branch is None:
        return [f"remove the capsule; the checkout {capsule.record.workspace} is not changed"]
    fate = "keep" if keep_branch else "remove"
    what = "remove its private copy" if capsule.is_view else f"remove {capsule.record.workspace}"
    return [what, f"{fate} the branch {capsule.record.branch}"]
