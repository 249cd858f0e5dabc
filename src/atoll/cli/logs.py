"""`atoll logs`: what a run printed."""

from __future__ import annotations

import click

from atoll.cli import phrases
from atoll.cli.frame import Frame, name_argument, parse_run, run_argument, verb
from atoll.cli.harmless import Cleaner
from atoll.cli.output import stderr_is_terminal


@click.command("logs")
@name_argument
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends.")
@click.option("-t", "--timestamps", is_flag=True, help="Put the time before each line.")
@verb
def command(frame: Frame, name: str, run: str | None, *, follow: bool, timestamps: bool) -> None:
    """Shows the output of the latest run of NAME, or of RUN.

    Control sequences are taken out: what a run prints cannot steer your terminal.
    """
    capsule = frame.capsule(name)
    found = capsule.require_run(parse_run(run, name))
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


def _stamped(text: str, stamp: str, *, fresh: bool) -> tuple[str, bool]:
    """Puts the time before each line; `fresh` says whether a line begins here."""
    lines = text.splitlines(keepends=True)
    stamped = [
        f"{stamp}  {line}" if fresh or index > 0 else line for index, line in enumerate(lines)
    ]
    return "".join(stamped), text.endswith("\n") if text else fresh
