"""`atoll wait`: waits for a run to end."""

from __future__ import annotations

import click

from atoll.cli import phrases
from atoll.cli.frame import Frame, name_argument, parse_run, run_argument, verb
from atoll.cli.output import envelope
from atoll.cli.status import report, status_option
from atoll.engine import shapes


@click.command("wait")
@name_argument
@run_argument
@click.option("--timeout", type=click.FloatRange(0), help="Give up after this many seconds.")
@status_option
@verb
def command(frame: Frame, name: str, run: str | None, timeout: float | None) -> int:
    """Wait for RUN, or for the latest run of NAME, and exit with its code."""
    capsule = frame.capsule(name)
    target = capsule.require_run(parse_run(run, name))
    ended = capsule.wait(target, timeout_s=timeout)
    report(envelope("run", shapes.run(ended)))
    frame.output.answer("run", shapes.run(ended), f"{ended.label}  {phrases.state_of(ended)}")
    if text := capsule.describe_refusals(capsule.refusals(target)):
        frame.output.note(text)
    return 0 if ended.outcome is None or frame.output.json else ended.outcome.shell_code
