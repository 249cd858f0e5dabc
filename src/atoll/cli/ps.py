"""`atoll ps`: list the processes of a capsule."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.engine import shapes
from atoll.model import units


@click.command("ps")
@name_argument
@verb
def command(frame: Frame, name: str) -> None:
    """List all processes of NAME, including daemonized ones."""
    found = frame.capsule(name).processes()
    frame.output.table(
        "processes",
        [shapes.process(run, process) for run, process in found],
        ("run", "pid", "ppid", "cpu", "memory", "age", "command"),
        (
            (
                run.label,
                str(process.pid),
                str(process.ppid),
                f"{process.cpu_s:.1f}s",
                units.render_size(process.rss_bytes) if process.rss_bytes else "0",
                f"{process.age_s:.0f}s",
                process.command[:80],
            )
            for run, process in found
        ),
    )
