"""`atoll bench`: measure Atoll on this machine, as ratios to comparable tools."""

from __future__ import annotations

from pathlib import Path

import click

from atoll.cli.frame import Frame, verb
from atoll.cli.tables import render_columns
from atoll.engine.bench.workspace import SIZES, WHAT, BenchOptions
from atoll.engine.home import BENCHES, Home


@click.command("bench")
@click.argument("what", type=click.Choice(BENCHES))
@click.option(
    "--size", "sizes", multiple=True, type=click.Choice([*SIZES, "all"]),
    help="Project size: 500, 70,000 or 300,000 files; default: S and M.",
)  # fmt: skip
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(WHAT),
    help="Measure only this operation; default: all.",
)
@click.option(
    "--repeat", default=20, show_default=True, type=click.IntRange(1, 1000),
    help="Number of samples of short operations.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Skip comparisons that take many seconds.")
@click.option(
    "--place", metavar="DIR", help="Create the projects in DIR; default: in Atoll's home."
)
@click.option("--keep", metavar="DIR", help="Keep the generated projects in DIR and reuse them.")
@click.option(
    "--scale", default=1.0, type=click.FloatRange(0.001, 1.0),
    help="Scale the project size by this factor, e.g. 0.01 for a trial.",
)  # fmt: skip
@verb
def command(
    frame: Frame,
    what: str,
    sizes: tuple[str, ...],
    only: tuple[str, ...],
    repeat: int,
    place: str | None,
    keep: str | None,
    scale: float,
    *,
    quick: bool,
) -> None:
    """Measure one of:

    \b
    workspace  creating capsules, compared with git worktree, cp -a and the bare system calls
    sandbox    starting commands, compared with bwrap, docker, podman, srt and sandlock
    network    connecting to a capsule's port, compared with a direct connection
    idle       CPU time and memory of a hundred idle runs
    race       ten attempts, compared with git worktree and cp -a; checks, with those in place

    Tools that are not installed are skipped. All generated files are removed at the end.
    """
    chosen = SIZES if "all" in sizes else sizes or ("S", "M")
    order = BenchOptions(
        sizes=chosen,
        only=only or WHAT,
        repeat=repeat,
        scale=scale,
        quick=quick,
        place=None if place is None else Path(place),
        keep=None if keep is None else Path(keep),
    )
    report = Home.bench(what, order, on_progress=frame.output.note)
    lines = [*report.head(), "", render_columns(report.columns(), report.cells())]
    lines += [f"not measured: {text}" for text in report.skipped]
    frame.output.answer("bench", report.shape(), "\n".join(lines))
