"""`atoll logs`: what a run printed."""

from __future__ import annotations

import click

from atoll.cli import phrases
from atoll.cli.frame import Frame, name_argument, parse_run, run_argument, verb
from atoll.cli.harmless import Cleaner
from atoll.cli.output import stderr_is_terminal
from atoll.engine.capsules import Capsule
from atoll.model.state import Run


@click.command("logs")
@name_argument
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends.")
@click.option("-t", "--timestamps", is_flag=True, help="Put the time before each line.")
@verb
def command(frame: Frame, name: str, run: str | None, *, follow: bool, timestamps: bool) -> None:
    """Shows the output of RUN, or of the run of NAME that is running, or else of the latest.

    Control sequences are taken out: what a run prints cannot steer your terminal.
    """
    capsule = frame.capsule(name)
    found = _choose(frame, capsule, parse_run(run, name))
    cleaners = {"out": Cleaner(), "err": Cleaner()}
    fresh = True
    for entry in capsule.log(found, follow=follow):
        if entry.dropped_bytes:
            frame.output.warn(f"{entry.dropped_bytes} bytes are not kept")
            continue
        data = {
            "time": entry.time,
            "stream": entry.stream,
            "text": entry.data.decode(errors="replace"),
        }
        text = cleaners[entry.stream].clean(entry.data)
        if timestamps and not frame.output.json:
            stamp = phrases.moment(entry.time)
            text, fresh = _stamped(text, stamp, fresh=fresh)
        frame.output.item("log", data, text)
    if not frame.output.json:
        frame.output.item("log", {}, "".join(cleaner.flush() for cleaner in cleaners.values()))
    if follow and found.outcome is None and not frame.output.json:
        ended = capsule.wait(found)
        if ended.outcome is not None and stderr_is_terminal():
            frame.output.note(f"{ended.label}: {phrases.ending(ended.outcome)}")


def _choose(frame: Frame, capsule: Capsule, number: int | None) -> Run:
    """The run that was named; else the latest of those that are running, or of all."""
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
    """Puts the time before each line; `fresh` says whether a line begins here."""
    lines = text.splitlines(keepends=True)
    stamped = [
        f"{stamp}  {line}" if fresh or index > 0 else line for index, line in enumerate(lines)
    ]
    return "".join(stamped), text.endswith("\n") if text else fresh
