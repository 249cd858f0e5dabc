"""`atoll stop`: ends runs with everything that they started."""

from __future__ import annotations

import click

from atoll.cli import phrases
from atoll.cli.frame import Frame, name_argument, parse_run, run_argument, verb
from atoll.engine import shapes
from atoll.model.errors import SpecError


@click.command("stop")
@name_argument
@run_argument
@click.option(
    "--grace",
    default=5.0,
    type=click.FloatRange(0, 3600),
    help="Seconds between SIGTERM and SIGKILL.",
)
@verb
def command(frame: Frame, name: str, run: str | None, grace: float) -> None:
    """Stop all runs of NAME, or only RUN, including daemonized child processes."""
    # The run may be what fills the disk.
    frame.make_room(everything=False)
    capsule = frame.capsule(name)
    if run is not None and run in (other.name for other in frame.project().capsules()):
        raise SpecError(
            f"`{run}` is a capsule and not a run of `{name}`: `stop` takes one capsule",
            hint=f"atoll stop {name}; atoll stop {run}",
        )
    target = None if run is None else capsule.require_run(parse_run(run, name))
    stopped = capsule.stop(target, grace_s=grace)
    lines = [f"{item.label}  {phrases.state_of(item)}" for item in stopped]
    frame.output.answer("runs", [shapes.run(item) for item in stopped], "\n".join(lines))
    if not stopped:
        frame.output.note(f"`{name}` has no active runs")
