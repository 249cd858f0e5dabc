"""What several runs of a check say together."""

from __future__ import annotations

import pytest

from atoll.engine.check.attempts import Attempt, combine, judge
from atoll.model.check import CheckSpec, CheckStatus
from atoll.model.state import Outcome, Reason

SPEC = CheckSpec("test", "make", timeout_s=5)
PASSED, FAILED, ERROR = (
    Attempt(status, 1.0, message=str(status))
    for status in (CheckStatus.PASSED, CheckStatus.FAILED, CheckStatus.ERROR)
)


@pytest.mark.parametrize(
    ("attempts", "status"),
    [
        ([PASSED], "passed"),
        ([FAILED, PASSED], "flaky"),
        ([FAILED, FAILED], "failed"),
        ([FAILED, ERROR], "failed"),
        ([ERROR], "error"),
    ],
)
def test_a_pass_after_a_failure_is_flaky(attempts, status):
    combined = combine(attempts)
    assert combined.status == status
    assert combined.took_s == len(attempts)


@pytest.mark.parametrize(
    ("reason", "code", "status"),
    [
        (Reason.EXITED, 0, "passed"),
        (Reason.EXITED, 1, "failed"),
        (Reason.SIGNALLED, None, "failed"),
        (Reason.TIMEOUT, None, "timeout"),
        (Reason.IDLE, None, "timeout"),
        *((reason, None, "error") for reason in (
            Reason.OUTPUT, Reason.OOM, Reason.PIDS, Reason.DISK, Reason.LOST, Reason.NOT_STARTED,
            Reason.STOPPED, Reason.HANGUP, Reason.NO_WALLS,
        )),
    ],
)  # fmt: skip
def test_the_end_of_a_run_decides(reason, code, status):
    found, message = judge(Outcome(reason, exit_code=code, signal=9), SPEC)
    assert found == status
    assert bool(message) == (status != "passed")
