"""`atoll attach`: attach the terminal to a run."""

from __future__ import annotations

import time

import click

from atoll.cli import phrases
from atoll.cli.frame import Frame, parse_run, verb
from atoll.cli.output import envelope
from atoll.cli.status import report, status_option
from atoll.cli.terminal import Sink, is_terminal, relay, size
from atoll.engine import shapes
from atoll.engine.capsules import Capsule
from atoll.model.errors import StateError
from atoll.model.state import Run, require_outcome


@click.command("attach")
@click.argument("run", metavar="RUN")
@status_option
@verb
def command(frame: Frame, run: str) -> int:
    """Attach to RUN, e.g. fix-auth.2, or a capsule's name for its latest active run.

    If the run has a terminal, your input goes to it and Ctrl-] detaches. Ctrl-C is passed to the
    run; if it has no terminal, a second Ctrl-C stops it.
    """
    name, _, number = run.partition(".")
    capsule = frame.capsule(name)
    living = [] if number else capsule.living()
    found = living[-1] if living else capsule.require_run(parse_run(number or None, name))
    return attach_to(frame, capsule, found)


def attach_to(frame: Frame, capsule: Capsule, found: Run) -> int:
    """Relays until the run ends or the user detaches; returns the exit code."""
    rows, cols = size()
    channel = None
    if found.outcome is None:
        channel = capsule.channel(found, role="attach", rows=rows, cols=cols)
    if channel is None:
        raise StateError(
            f"`{found.label}` has ended", hint=f"atoll logs {capsule.name} {found.number}"
        )
    tty = found.tty and is_terminal() and not frame.output.json
    if tty:
        frame.output.note(f"attached to {found.label}; press Ctrl-] to detach")
    with channel:
        stayed = relay(channel, _sink(frame), tty=tty, detachable=tty)
    if not stayed:
        report(envelope("run", shapes.run(found)))
        frame.output.note(f"detached from {found.label}, which keeps running")
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
    def print_entry(stream: str, data: bytes) -> None:
        frame.output.item("log", shapes.log_output(time.time(), stream, data), "")

    return print_entry if frame.output.json else frame.output.raw
