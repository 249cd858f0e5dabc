"""`atoll new`: makes capsules."""

from __future__ import annotations

import time

import click

from atoll.cli import shapes
from atoll.cli.excluded import render_excluded
from atoll.cli.frame import Frame, verb
from atoll.engine.levels import NAMES
from atoll.engine.projects import CapsuleSpec
from atoll.model.names import numbered, printable


@click.command("new")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--from", "base", metavar="REF", help="Start from this commit; default: HEAD.")
@click.option("--level", metavar="LEVEL", help=f"How hard the walls are: {', '.join(NAMES)}.")
@click.option("--network", metavar="MODE", help="none, allow or open.")
@click.option("--limit", "limits", multiple=True, metavar="KEY=VALUE", help="Such as time=2h.")
@click.option("--dirty", is_flag=True, help="With the owner's uncommitted changes.")
@click.option(
    "--workspace", metavar="DRIVER", help="auto, overlay, btrfs, reflink or copy; default: auto."
)
@click.option(
    "-n", "count", default=1, type=click.IntRange(1, 1000), help="Make NAME-1 to NAME-N of each."
)
@click.option("--dry-run", is_flag=True, help="Print what would be done.")
@verb
def command(
    frame: Frame,
    names: tuple[str, ...],
    base: str | None,
    level: str | None,
    network: str | None,
    limits: tuple[str, ...],
    workspace: str | None,
    count: int,
    *,
    dirty: bool,
    dry_run: bool,
) -> None:
    """Makes the capsule NAME, or several: private copies of this project on the branches
    atoll/NAME.
    """
    wanted = [one for name in names for one in numbered(name, count)]
    if twice := sorted({name for name in wanted if wanted.count(name) > 1}):
        raise click.UsageError(f"`{twice[0]}` is named twice")
    project = frame.project()
    spec = CapsuleSpec(
        level=level,
        base=base,
        network=network,
        limits=limits,
        dirty=dirty,
        workspace=workspace,
    )
    plans = project.plan_many(wanted, spec)
    if dry_run:
        lines = [line for plan in plans for line in plan.describe()]
        frame.output.answer("plan", lines, "\n".join(map(printable, lines)))
        return
    started = time.monotonic()
    question = project.ask_excluded(plans[0])
    made = project.make(plans, tell=frame.output.freezing)
    took = f"in {time.monotonic() - started:.2f} s"
    for capsule, plan in zip(made, plans, strict=True):
        frame.output.note(
            f"made `{capsule.name}` ({plan.level}) from {plan.base_ref} at "
            f"{plan.base_commit[:10]} {took}"
        )
    excluded = question.answer()
    if line := render_excluded(excluded, dirty=dirty):
        frame.output.note(line)
    shown = [
        {**shapes.capsule(capsule.record), "left_out": shapes.excluded(excluded)}
        for capsule in made
    ]
    frame.output.answer("capsules", shown, "\n".join(str(shape["name"]) for shape in shown))
