"""`atoll bench`: the figures of this machine, as ratios against what others need."""

from __future__ import annotations

from pathlib import Path

import click

from atoll.cli.frame import Frame, verb
from atoll.cli.tables import render_columns
from atoll.engine.bench import table
from atoll.engine.bench.idle import measure as measure_idle
from atoll.engine.bench.network import measure as measure_network
from atoll.engine.bench.sandbox import measure as measure_walls
from atoll.engine.bench.workspace import SIZES, WHAT, Order, measure

_MEASURES = {
    "workspace": measure,
    "sandbox": measure_walls,
    "network": measure_network,
    "idle": measure_idle,
}


@click.command("bench")
@click.argument("what", type=click.Choice([*_MEASURES]))
@click.option(
    "--size", "sizes", multiple=True, type=click.Choice([*SIZES, "all"]),
    help="500, 70,000 or 300,000 files; default: S and M.",
)  # fmt: skip
@click.option(
    "--only", multiple=True, type=click.Choice(WHAT), help="Measure only this; default: all."
)
@click.option(
    "--repeat", default=20, show_default=True, type=click.IntRange(1, 1000),
    help="Samples of what takes milliseconds.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Without the peers that take many seconds.")
@click.option("--place", metavar="DIR", help="Measure below DIR; default: in Atoll's home.")
@click.option("--keep", metavar="DIR", help="Leave the generated projects in DIR, and use them.")
@click.option(
    "--scale", default=1.0, type=click.FloatRange(0.001, 1.0),
    help="Shrink the projects, to try it out.",
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
    """Measures workspaces on generated projects, against git worktree, cp -a and the bare system
    calls; or what walls cost, against bwrap, docker, podman, srt and sandlock where they are
    installed; or what it costs to reach a capsule's port, against a direct connection; or what a
    hundred idle runs cost. Everything that it makes is removed at the end."""
    chosen = SIZES if "all" in sizes else sizes or ("S", "M")
    order = Order(
        sizes=chosen,
        only=only or WHAT,
        repeat=repeat,
        scale=scale,
        quick=quick,
        place=None if place is None else Path(place),
        keep=None if keep is None else Path(keep),
    )
    report = _MEASURES[what](order, frame.output.note)
    lines = [*table.head(report), "", render_columns(table.COLUMNS, table.cells(report.rows))]
    lines += [f"not measured: {text}" for text in report.skipped]
    frame.output.answer("bench", table.shape(report), "\n".join(lines))
