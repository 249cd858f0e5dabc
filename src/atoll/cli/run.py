"""`atoll run`: a command inside a capsule."""

from __future__ import annotations

import os

import click

from atoll.cli import phrases, shapes
from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.output import envelope
from atoll.cli.status import report, status_option
from atoll.cli.terminal import is_terminal, relay, size
from atoll.engine import places, refusals
from atoll.engine.capsules import Capsule
from atoll.engine.captured import TEXT_LIMIT_BYTES, Captured
from atoll.engine.runs import RunSpec
from atoll.model import units
from atoll.model.errors import SpecError
from atoll.model.state import Outcome, Reason, require_outcome

cwd_option = click.option(
    "--cwd", metavar="DIR",
    help="Start there, in the workspace; default: where you are in the project.",
)  # fmt: skip


@click.command("run", options_metavar="[OPTIONS]")
@name_argument
@click.argument("argv", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
@click.option("-d", "--detach", is_flag=True, help="In the background; prints the run's id.")
@click.option("-t", "--tty", is_flag=True, help="Give a background run a terminal, for `attach`.")
@click.option("--timeout", metavar="TIME", help="End it after this time, such as 10m.")
@click.option(
    "--write", multiple=True, metavar="PATTERN",
    help="Nothing else in the workspace can be written, such as 'src/payments/**'.",
)  # fmt: skip
@click.option(
    "--network", metavar="MODE",
    help="none: not even the capsule's; allow, open: wider than the capsule's while it runs.",
)  # fmt: skip
@cwd_option
@status_option
@verb
def command(
    frame: Frame,
    name: str,
    argv: tuple[str, ...],
    cwd: str | None,
    timeout: str | None,
    write: tuple[str, ...],
    network: str | None,
    *,
    detach: bool,
    tty: bool,
) -> int:
    """Runs COMMAND inside the capsule NAME and exits with its code."""
    frame.make_room(everything=False)
    capsule = frame.capsule(name)
    cwd = choose_cwd(frame, capsule, cwd)
    asked = RunSpec(
        argv=argv, cwd=cwd, timeout_s=_parse_timeout(timeout), write=write, network=network
    )
    if detach:
        return _start_background(frame, capsule, asked._replace(background=True, tty=tty))
    return run_foreground(frame, capsule, asked)


def choose_cwd(frame: Frame, capsule: Capsule, wanted: str | None) -> str:
    """Where a command starts: as was said, or where the user is in the project."""
    root = frame.project().root
    if wanted is not None:
        is_here = os.path.realpath(wanted) == os.path.realpath(root)
        return "" if is_here else places.relative_place(root, wanted) or wanted
    here = places.relative_place(root, os.getcwd())
    if here and not capsule.has_directory(here):
        frame.output.note(f"`{here}` is not in `{capsule.name}`: starting at the top")
        return ""
    return here


def _parse_timeout(text: str | None) -> float | None:
    try:
        return None if text is None else units.parse_duration_s(text)
    except ValueError as error:
        raise SpecError(f"`--timeout {text}`: {error}", hint="--timeout 10m") from error


def _start_background(frame: Frame, capsule: Capsule, asked: RunSpec) -> int:
    rows, cols = size()
    run = capsule.start(asked._replace(rows=rows, cols=cols))
    report(envelope("run", shapes.run(run)))
    frame.output.answer("run", shapes.run(run), run.label)
    frame.output.note(f"hint: atoll logs {capsule.name} {run.number} -f")
    return 0


def run_foreground(frame: Frame, capsule: Capsule, asked: RunSpec, *, owner: bool = False) -> int:
    """Runs to the end with this terminal or these pipes; returns the command's own code."""
    tty = is_terminal() and not frame.output.json
    rows, cols = size()
    before = capsule.mark_refusals()
    run = capsule.start(asked._replace(tty=tty, rows=rows, cols=cols), owner=owner)
    captured = Captured(TEXT_LIMIT_BYTES)
    channel = capsule.channel(run, role="foreground", rows=rows, cols=cols)
    if channel is not None:
        with channel:
            relay(channel, captured.add if frame.output.json else frame.output.raw, tty=tty)
    ended = capsule.conclude(run)
    outcome = require_outcome(ended)
    report(envelope("run", shapes.run(ended)))
    refused = capsule.refusals(before)
    if frame.output.json:
        network = {"refused": [attempt._asdict() for attempt in refused]}
        data = {**shapes.run(ended), **shapes.captured(captured), "network": network}
        frame.output.answer("run", data, "")
        return 0
    _tell_end(frame, run.label, outcome)
    if told := refusals.describe(capsule.record, refused):
        frame.output.note(told)
    if asked.write and not outcome.good:
        frame.output.note(f"{run.label}: nothing but {', '.join(asked.write)} could be written")
    return outcome.shell_code


def _tell_end(frame: Frame, label: str, outcome: Outcome) -> None:
    """Only what the command itself could not say."""
    if outcome.reason not in (Reason.EXITED, Reason.SIGNALLED):
        said = f": {outcome.message}" if outcome.message else ""
        frame.output.note(f"{label}: {phrases.ending(outcome)}{said}")
    elif outcome.message:
        frame.output.note(f"{label}: {outcome.message}")
    if outcome.leftover:
        frame.output.note(f"{label}: ended what it left behind (processes: {outcome.leftover})")
