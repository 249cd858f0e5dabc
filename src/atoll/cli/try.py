# ruff: noqa: N999 - the file is named after its verb
"""`atoll try`: a command that is rolled back unless the checks pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.cli.check import describe, follow
from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.run import (
    choose_cwd,
    cwd_option,
    environment_options,
    follow_foreground,
    parse_timeout,
)
from atoll.engine import shapes
from atoll.engine.capsules import RunSpec
from atoll.model.state import require_outcome

if TYPE_CHECKING:
    from atoll.engine.check.trials import TrialReport


@click.command("try", options_metavar="[OPTIONS]")
@name_argument
@click.argument("argv", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
@click.option(
    "--check", "checks", multiple=True, metavar="CHECK",
    help="A check that must pass; default: all of the project's.",
)  # fmt: skip
@click.option("--timeout", metavar="TIME", help="Stop the command after this time, e.g. 10m.")
@click.option(
    "--jobs", type=click.IntRange(1, 256), metavar="N",
    help="Run at most N checks at once; default: the number of CPUs.",
)  # fmt: skip
@cwd_option
@environment_options
@verb
def command(
    frame: Frame,
    name: str,
    argv: tuple[str, ...],
    checks: tuple[str, ...],
    timeout: str | None,
    jobs: int | None,
    cwd: str | None,
    env: tuple[str, ...],
    env_file: tuple[str, ...],
) -> int:
    """Run COMMAND inside the capsule NAME, and keep what it did only if the checks pass.

    The checks run in fresh capsules on everything that COMMAND left, committed or not. Otherwise
    NAME is rolled back to the state before. Exits with 0 if it was kept, with 1 if not.
    """
    capsule = frame.capsule(name)
    asked = RunSpec(
        argv=argv, cwd=choose_cwd(frame, capsule, cwd), timeout_s=parse_timeout(timeout),
        private_env=capsule.parse_variables(env, env_file),
    )  # fmt: skip
    trial = capsule.begin_trial(argv, checks)
    try:
        done = follow_foreground(frame, capsule, asked, trial.await_end)
        with frame.output.live() as lines:
            report = trial.conclude(done.run, most=jobs, on_progress=follow(lines))
    except BaseException:
        attempt = trial.abandon()
        if attempt is not None:
            frame.output.note(
                f"rolled `{name}` back to snapshot {trial.before.number}; the attempt is snapshot "
                f"{attempt.number}"
            )
        raise
    if frame.output.json:
        shown = shapes.trial(name, report, done.captured, done.refused)
        frame.output.answer("try", shown, "")
        return 0 if report.kept else 1
    _show(frame, name, report)
    return 0 if report.kept else 1


def _show(frame: Frame, name: str, report: TrialReport) -> None:
    output, before = frame.output, report.before.number
    if report.checks is not None:
        describe(output, report.checks)
        passed = ", ".join(f"{one.name} {one.status}" for one in report.checks.results)
        reason = f"{passed} (tree {report.checks.tree[:10]})"
    elif require_outcome(report.run).good:
        reason = "the command succeeded; there are no checks, so its exit code alone decides"
    else:
        code = require_outcome(report.run).exit_code
        reason = "the command failed" + (f": exit code {code}" if code else "")
    if report.kept:
        output.note(f"kept: {reason}\nhint: atoll rollback {name} {before} undoes it")
        return
    attempt = report.attempt.number if report.attempt is not None else "?"
    output.note(
        f"rolled `{name}` back to snapshot {before}: {reason}\n"
        f"hint: atoll rollback {name} {attempt} returns to the attempt, "
        f"atoll diff {name} {attempt} compares with it"
    )
