"""One run of a check in a capsule, and what was observed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, NamedTuple

from atoll.engine.capsule import foreground_runs
from atoll.engine.capsule.temporary import Workbench
from atoll.engine.check import junit_report
from atoll.engine.check.observed_output import ObservedOutput
from atoll.engine.enclosure import views
from atoll.engine.run import internal_runs, runs
from atoll.engine.state.session import Session
from atoll.model.check import CheckSpec, CheckStatus, JunitCounts
from atoll.model.errors import AtollError
from atoll.model.names import printable
from atoll.model.state import CapsuleRecord, Outcome, Reason, Run, RunState, require_outcome

Start = Callable[[runs.RunSpec], Run]
"""Starts a run in the capsule."""

_STEP_S = 0.2
_MESSAGES = {
    Reason.OUTPUT: "it wrote more output than its capsule may (limit `output`)",
    Reason.OOM: "it used more memory than its capsule may (limit `memory`)",
    Reason.PIDS: "it started more processes than its capsule may (limit `pids`)",
    Reason.DISK: "it used more disk space than its capsule may (limit `disk`)",
    Reason.STOPPED: "it was stopped",
    Reason.HANGUP: "it was stopped",
    Reason.LOST: "its supervisor was killed",
    Reason.NOT_STARTED: "it could not be started",
}


def starter(session: Session, capsule: CapsuleRecord) -> Start:
    """Starts runs in a temporary capsule. In a fork of a capsule whose runs were restricted, they
    are restricted likewise: what these left there gets no more rights than they had.
    """
    network, patterns = internal_runs.narrowest(session, capsule)

    def start(spec: runs.RunSpec) -> Run:
        inside = foreground_runs.enclosure(session, capsule, is_open=True)
        narrowed = spec._replace(network=network, write=patterns or ())
        return runs.start(session, capsule, inside, narrowed)

    return start


def end_all(session: Session, bench: Workbench, futures: Collection[Future[Any]]) -> None:
    """Ends the runs in the capsules of a bench until the threads of `futures` have ended, which
    start no more. Also when a second interrupt comes meanwhile.
    """
    try:
        while wait(futures, timeout=_STEP_S).not_done:
            _end_runs(session, bench)
    except BaseException:
        _end_runs(session, bench)
        raise


def _end_runs(session: Session, bench: Workbench) -> None:
    for capsule in bench.capsules():
        for run in session.store.runs(capsule):
            if run.state is not RunState.ENDED:
                runs.stop(session, run, grace_s=0)


class Attempt(NamedTuple):
    """What one run of a check came to."""

    status: CheckStatus
    took_s: float = 0.0
    exit_code: int | None = None
    message: str = ""
    output: ObservedOutput | None = None
    tests: JunitCounts | None = None


def run_in(session: Session, capsule: CapsuleRecord, spec: CheckSpec, start: Start) -> Attempt:
    """Runs a check in a capsule to its end. Whatever it does is a result.

    Raises IsolationError and DriverError when it cannot be started. When this raises, the run has
    ended.
    """
    began = time.time()
    run = start(
        runs.RunSpec(argv=("/bin/sh", "-c", spec.command), stdin=False, timeout_s=spec.timeout_s)
    )
    try:
        output = _follow(session, run, spec)
        ended = foreground_runs.conclude(session, capsule, run)
    except BaseException:
        runs.stop(session, run, grace_s=0)
        raise
    outcome = require_outcome(ended)
    took_s = max(0.0, (ended.ended_at or time.time()) - began)
    tests, trouble = _read_tests(session, capsule, spec, began)
    status, message = judge(outcome, spec)
    return Attempt(
        status=status,
        took_s=took_s,
        exit_code=outcome.exit_code if outcome.reason is Reason.EXITED else None,
        message="; ".join(filter(None, (message, trouble))),
        output=output,
        tests=tests,
    )


def _follow(session: Session, run: Run, spec: CheckSpec) -> ObservedOutput:
    output = ObservedOutput(has_figures=spec.has_figures)
    channel = runs.find_channel(session, run, role="foreground")
    if channel is not None:
        with channel:
            channel.close_input()
            for stream, data in channel.exchange():
                output.add(stream, data)
    output.close()
    return output


def judge(outcome: Outcome, spec: CheckSpec) -> tuple[CheckStatus, str]:
    """What the end of a run says of a check, and why it is no pass. Pure."""
    match outcome.reason:
        case Reason.EXITED if outcome.exit_code == 0:
            return CheckStatus.PASSED, ""
        case Reason.EXITED:
            return CheckStatus.FAILED, f"exit code {outcome.exit_code}"
        case Reason.SIGNALLED:
            return CheckStatus.FAILED, f"ended by signal {outcome.signal}"
        case Reason.TIMEOUT:
            return CheckStatus.TIMEOUT, f"did not end within {spec.timeout_s:g} s"
        case Reason.IDLE:
            return CheckStatus.TIMEOUT, "did nothing for too long (limit `idle`)"
    said = f": {printable(outcome.message[:300])}" if outcome.message else ""
    return CheckStatus.ERROR, _MESSAGES.get(outcome.reason, str(outcome.reason)) + said


def _read_tests(
    session: Session, capsule: CapsuleRecord, spec: CheckSpec, since: float
) -> tuple[JunitCounts | None, str]:
    """The report of a check, and what is wrong with it. The exit code of a check decides, also when
    its report is missing: then the message says so.
    """
    if spec.junit is None:
        return None, ""
    try:
        root: Path = views.host_path(session, capsule, pin=False)
        return junit_report.read_report(root, spec.junit, since=since), ""
    except junit_report.BrokenReportError as error:
        return None, f"no test counts: `{printable(spec.junit)}`: {printable(str(error)[:200])}"
    except AtollError as error:
        return None, f"no test counts: {printable(error.message[:200])}"


def failed_to_run(error: AtollError) -> Attempt:
    """What is observed of a check that could not be run."""
    head, *rest = error.message.split("\n")
    output = ObservedOutput()
    output.add("err", "\n".join(rest).encode(errors="replace"))
    output.close()
    return Attempt(CheckStatus.ERROR, message=printable(head[:500]), output=output)


def combine(attempts: list[Attempt]) -> Attempt:
    """What several attempts say together: a pass after a failure is flaky, not a pass. An attempt
    that could not be run says nothing about the tree, unless it is the only one.
    """
    said = [one for one in attempts if one.status is not CheckStatus.ERROR] or attempts
    last = said[-1]
    took_s = sum(one.took_s for one in attempts)
    if last.status is CheckStatus.PASSED and len(said) > 1:
        message = f"passed after {len(said) - 1} failed: {said[0].message}"
        return last._replace(status=CheckStatus.FLAKY, took_s=took_s, message=message)
    return last._replace(took_s=took_s)
