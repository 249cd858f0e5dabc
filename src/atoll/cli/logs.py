"""`atoll logs`: show the output of a run."""

from __future__ import annotations

import click

from atoll.cli import phrases
from atoll.cli.frame import Frame, name_argument, parse_run, run_argument, verb
from atoll.cli.harmless import Cleaner
from atoll.cli.output import stderr_is_terminal
from atoll.engine import shapes
from atoll.engine.capsules import Capsule
from atoll.model.state import Run


@click.command("logs")
@name_argument
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Print new output until the run ends.")
@click.option("-t", "--timestamps", is_flag=True, help="Prefix each line with its time.")
@verb
def command(frame: Frame, name: str, run: str | None, *, follow: bool, timestamps: bool) -> None:
    """Show the output of RUN; by default of the run in progress, or else of the latest run.

    Terminal control sequences are removed.
    """
    capsule = frame.capsule(name)
    found = _choose(frame, capsule, parse_run(run, name))
    cleaners = {"out": Cleaner(), "err": Cleaner()}
    fresh = True
    for entry in capsule.log(found, follow=follow):
        if entry.dropped_bytes:
            frame.output.warn(f"{entry.dropped_bytes} bytes were dropped")
            continue
        text = cleaners[entry.stream].clean(entry.data)
        if timestamps and not frame.output.json:
            stamp = phrases.moment(entry.time)
            text, fresh = _stamped(text, stamp, fresh=fresh)
        frame.output.item("log", shapes.log_entry(entry), text)
    if not frame.output.json:
        frame.output.item("log", None, "".join(cleaner.flush() for cleaner in cleaners.values()))
    if follow and found.outcome is None and not frame.output.json:
        ended = capsule.wait(found)
        if ended.outcome is not None and stderr_is_terminal():
            frame.output.note(f"{ended.label}: {phrases.ending(ended.outcome)}")


def _choose(frame: Frame, capsule: Capsule, number: int | None) -> Run:
    """Returns the requested run; else the latest active run, or the latest of all."""
    living = [] if number is not None else capsule.living()
    if not living:
        return capsule.require_run(number)
    if len(living) > 1:
        others = ", ".join(f"{run.number}" for run in living[:-1])
        frame.output.note(
            f"{living[-1].label}: {phrases.command(living[-1].argv)} (also running: {others})"
        )
    return living[-1]


def _stamped(text: str, stamp: str, *, fresh: bool) -> tuple[str, bool]:
    """Prefixes each line with the time; `fresh` is whether the text starts a new line."""
    lines = text.splitlines(keepends=True)
    stamped = [
        f"{stamp}  {line}" if fresh or index > 0 else line for index, line in enumerate(lines)
    ]
    return "".join(stamped), text.endswith("\n") if text else fresh
