"""`atoll rm`: removes capsules; nothing is lost."""

from __future__ import annotations

import click

from atoll.cli import shapes
from atoll.cli.frame import Frame, names_argument, verb
from atoll.engine.capsules import Capsule


@click.command("rm")
@names_argument
@click.option(
    "--force", is_flag=True, help="Stop runs, store all work as a recovery point, remove."
)
@click.option("--keep-branch", is_flag=True, help="Leave the branch atoll/NAME with its commits.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed and stored.")
@verb
def command(
    frame: Frame, names: tuple[str, ...], *, force: bool, keep_branch: bool, dry_run: bool
) -> None:
    """Removes capsules. Refuses when one holds work that exists nowhere else."""
    capsules = [frame.capsule(name) for name in dict.fromkeys(names)]
    if dry_run:
        _tell_plan(frame, capsules)
        return
    if not force:
        # All or none: the second one must not fail after the first one has gone.
        for capsule in capsules:
            capsule.require_expendable(keep_branch=keep_branch)
    removed = []
    for capsule in capsules:
        point = capsule.remove(force=force, keep_branch=keep_branch)
        stored = None if point is None else shapes.recovery_point(point)
        removed.append({"name": capsule.name, "recovery_point": stored})
        if point is not None:
            frame.output.note(
                f"stored the work of `{capsule.name}`\nhint: atoll recover {point.id}"
            )
    frame.output.answer("removed", removed, "\n".join(capsule.name for capsule in capsules))


def _tell_plan(frame: Frame, capsules: list[Capsule]) -> None:
    lines, data = [], []
    for capsule in capsules:
        work, living = capsule.work(), capsule.living()
        data.append(
            {
                "name": capsule.name,
                "workspace": capsule.record.workspace,
                "running": [run.label for run in living],
                "work": shapes.work(work),
            }
        )
        lines.append(f"{capsule.name}: remove {capsule.record.workspace}")
        lines += [f"{capsule.name}: stop {run.label}" for run in living]
        lines += [f"{capsule.name}: needs --force, which stores {line}" for line in work.render()]
        if work.ignored:
            lines.append(f"{capsule.name}: {work.ignored} ignored entries go with it")
    frame.output.answer("plan", data, "\n".join(lines))
