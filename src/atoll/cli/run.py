"""`atoll run`: a command inside a capsule."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from atoll.cli import phrases
from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.output import envelope
from atoll.cli.status import report, status_option
from atoll.cli.terminal import is_terminal, relay, size
from atoll.engine import shapes
from atoll.engine.capsules import TEXT_LIMIT_BYTES, Capsule, Captured, RunSpec
from atoll.model import units
from atoll.model.errors import SpecError
from atoll.model.state import Outcome, Reason, Run, require_outcome

if TYPE_CHECKING:
    from atoll.engine.network.egress_log import EgressAttempt

cwd_option = click.option(
    "--cwd", metavar="DIR",
    help="Working directory in the workspace; default: where you are in the project.",
)  # fmt: skip

F = TypeVar("F", bound=Callable[..., int | None])


def environment_options(function: F) -> F:
    """`--env` and `--env-file`, as the parameters `env` and `env_file`."""
    env = click.option(
        "--env", multiple=True, metavar="KEY[=VALUE]",
        help="Set a variable for this run only; without VALUE, take it from your environment.",
    )  # fmt: skip
    files = click.option(
        "--env-file", multiple=True, metavar="FILE",
        help="Set the variables in the KEY=VALUE lines of FILE for this run only.",
    )  # fmt: skip
    return env(files(function))


@click.command("run", options_metavar="[OPTIONS]")
@name_argument
@click.argument("argv", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
@click.option("-d", "--detach", is_flag=True, help="Run in the background and print the run's id.")
@click.option("-t", "--tty", is_flag=True, help="Give a background run a terminal, for `attach`.")
@click.option("--timeout", metavar="TIME", help="Stop the run after this time, e.g. 10m.")
@click.option(
    "--write", multiple=True, metavar="PATTERN",
    help="Allow writes only to paths matching PATTERN, e.g. 'src/payments/**'.",
)  # fmt: skip
@click.option(
    "--network", metavar="MODE",
    help="Network for this run: none, allow or open; default: the capsule's.",
)  # fmt: skip
@cwd_option
@environment_options
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
    env: tuple[str, ...],
    env_file: tuple[str, ...],
    *,
    detach: bool,
    tty: bool,
) -> int:
    """Run COMMAND inside the capsule NAME and exit with its code."""
    frame.make_room(everything=False)
    capsule = frame.capsule(name)
    cwd = choose_cwd(frame, capsule, cwd)
    asked = RunSpec(
        argv=argv, cwd=cwd, timeout_s=parse_timeout(timeout), write=write, network=network,
        private_env=capsule.parse_variables(env, env_file),
    )  # fmt: skip
    if detach:
        return _start_background(frame, capsule, asked._replace(background=True, tty=tty))
    return run_foreground(frame, capsule, asked)


def choose_cwd(frame: Frame, capsule: Capsule, wanted: str | None) -> str:
    """Returns the working directory: `wanted`, or the user's place in the project."""
    project = frame.project()
    if wanted is not None:
        is_top = os.path.realpath(wanted) == os.path.realpath(project.root)
        return "" if is_top else project.relative_path(wanted) or wanted
    here = project.relative_path(os.getcwd())
    if here and not capsule.has_directory(here):
        frame.output.note(
            f"`{here}` does not exist in `{capsule.name}`: starting in the project root"
        )
        return ""
    return here


def parse_timeout(text: str | None) -> float | None:
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


class ForegroundRun(NamedTuple):
    """A run that has ended, with what it wrote if that was collected."""

    run: Run
    captured: Captured
    refused: list[EgressAttempt]


def run_foreground(frame: Frame, capsule: Capsule, asked: RunSpec, *, owner: bool = False) -> int:
    """Runs with this terminal or these pipes until the end; returns the command's exit code."""
    done = follow_foreground(frame, capsule, asked, capsule.conclude, owner=owner)
    if frame.output.json:
        frame.output.answer("run", shapes.ended_run(*done), "")
        return 0
    return require_outcome(done.run).shell_code


def follow_foreground(
    frame: Frame,
    capsule: Capsule,
    asked: RunSpec,
    conclude: Callable[[Run], Run],
    *,
    owner: bool = False,
) -> ForegroundRun:
    """Runs with this terminal or these pipes until the end; with `--json` the output is collected.
    `conclude` waits for the end and records it.
    """
    tty = is_terminal() and not frame.output.json
    rows, cols = size()
    before = capsule.mark_refusals()
    run = capsule.start(asked._replace(tty=tty, rows=rows, cols=cols), owner=owner)
    captured = Captured(TEXT_LIMIT_BYTES)
    channel = capsule.channel(run, role="foreground", rows=rows, cols=cols)
    if channel is not None:
        with channel:
            relay(channel, captured.add if frame.output.json else frame.output.raw, tty=tty)
    ended = conclude(run)
    outcome = require_outcome(ended)
    report(envelope("run", shapes.run(ended)))
    refused = capsule.refusals(before)
    if not frame.output.json:
        _show_end(frame, run.label, outcome)
        if text := capsule.describe_refusals(refused):
            frame.output.note(text)
        if asked.write and not outcome.good:
            frame.output.note(f"{run.label}: writes were allowed only to {', '.join(asked.write)}")
    return ForegroundRun(ended, captured, refused)


def _show_end(frame: Frame, label: str, outcome: Outcome) -> None:
    """Reports how the run ended, unless the command's exit code is enough."""
    if outcome.reason not in (Reason.EXITED, Reason.SIGNALLED):
        said = f": {outcome.message}" if outcome.message else ""
        frame.output.note(f"{label}: {phrases.ending(outcome)}{said}")
    elif outcome.message:
        frame.output.note(f"{label}: {outcome.message}")
    if outcome.leftover:
        frame.output.note(f"{label}: killed leftover processes: {outcome.leftover}")
