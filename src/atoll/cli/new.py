"""`atoll new`: create capsules."""

from __future__ import annotations

import time

import click

from atoll.cli.excluded import render_excluded
from atoll.cli.frame import Frame, verb
from atoll.engine import shapes
from atoll.engine.projects import LEVEL_NAMES, CapsuleSpec
from atoll.model.names import numbered, printable


@click.command("new")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--from", "base", metavar="REF", help="Branch, tag or commit to start from; default: HEAD."
)
@click.option("--level", metavar="LEVEL", help=f"Isolation level: {', '.join(LEVEL_NAMES)}.")
@click.option("--network", metavar="MODE", help="Network access: none, allow or open.")
@click.option(
    "--limit", "limits", multiple=True, metavar="KEY=VALUE", help="Set a limit, e.g. time=2h."
)
@click.option("--dirty", is_flag=True, help="Include your uncommitted changes.")
@click.option(
    "--workspace",
    metavar="DRIVER",
    help="Workspace driver: auto, overlay, btrfs, reflink or copy; default: auto.",
)
@click.option(
    "-n",
    "count",
    default=1,
    type=click.IntRange(1, 1000),
    help="Create NAME-1 to NAME-N for each NAME.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan without executing it.")
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
    """Create one or more capsules: private copies of this project, each on a branch atoll/NAME."""
    wanted = [one for name in names for one in numbered(name, count)]
    if twice := sorted({name for name in wanted if wanted.count(name) > 1}):
        raise click.UsageError(f"`{twice[0]}` is given twice")
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
    made = project.make(plans, on_progress=frame.output.freezing)
    took = f"in {time.monotonic() - started:.2f} s"
    for capsule, plan in zip(made, plans, strict=True):
        frame.output.note(
            f"created `{capsule.name}` ({plan.level}) from {plan.base_ref} at "
            f"{plan.base_commit[:10]} {took}"
        )
    excluded = question.answer()
    if line := render_excluded(excluded, dirty=dirty):
        frame.output.note(line)
    shown = [shapes.new_capsule(capsule.record, excluded) for capsule in made]
    frame.output.answer("capsules", shown, "\n".join(shape["name"] for shape in shown))
