"""`atoll attach`: watch a run and type to it."""

from __future__ import annotations

import time

import click

from atoll.cli import phrases, shapes
from atoll.cli.frame import Frame, parse_run, verb
from atoll.cli.output import envelope
from atoll.cli.status import report, status_option
from atoll.cli.terminal import Sink, is_terminal, relay, size
from atoll.model.errors import StateError
from atoll.model.state import require_outcome


@click.command("attach")
@click.argument("run", metavar="RUN")
@status_option
@verb
def command(frame: Frame, run: str) -> int:
    """Attaches to RUN (such as fix-auth.2, or a capsule's name for its latest run).

    What you type goes to a run that has a terminal; Ctrl-] leaves it running. Ctrl-C is passed on
    to the run; where there is no terminal, a second one stops it.
    """
    name, _, number = run.partition(".")
    capsule = frame.capsule(name)
    found = capsule.require_run(parse_run(number or None, name))
    rows, cols = size()
    channel = None
    if found.outcome is None:
        channel = capsule.channel(found, role="attach", rows=rows, cols=cols)
    if channel is None:
        raise StateError(f"`{found.label}` has ended", hint=f"atoll logs {name} {found.number}")
    tty = found.tty and is_terminal() and not frame.output.json
    if tty:
        frame.output.note(f"attached to {found.label}; Ctrl-] leaves it running")
    with channel:
        stayed = relay(channel, _sink(frame), tty=tty, detachable=tty)
    if not stayed:
        report(envelope("run", shapes.run(found)))
        frame.output.note(f"\nleft {found.label} running")
        return 0
    ended = capsule.wait(found)
    outcome = require_outcome(ended)
    report(envelope("run", shapes.run(ended)))
    if frame.output.json:
        frame.output.item("run", shapes.run(ended), "")
        return 0
    frame.output.note(f"{found.label}: {phrases.ending(outcome)}")
    return outcome.shell_code


def _sink(frame: Frame) -> Sink:
    def tell(stream: str, data: bytes) -> None:
        entry = {"time": time.time(), "stream": stream, "text": data.decode(errors="replace")}
        frame.output.item("log", entry, "")

    return tell if frame.output.json else frame.output.raw
