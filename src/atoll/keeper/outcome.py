"""What became of a run: the wait status of its main process, put into words."""

from __future__ import annotations

import os

from atoll.keeper.log import read_log
from atoll.keeper.walls import UNBUILT, WallError, find_cause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from atoll.keeper.limits import Limits
    from atoll.keeper.run import Run
    from atoll.keeper.spawn import StartError
    from atoll.keeper.status import Status

OWN_ENDS = ("exited", "signalled", "not-started", "no-walls")


def judge(status: Status, run: Run, limits: Limits | None, run_dir: str) -> None:
    """Put what became of the main process into the status."""
    wait_status = run.wait_status
    failure: StartError | WallError | None = run.failure
    if failure is not None and not failure.message:
        # Who was ended on purpose may not have got as far as its walls.
        failure = _find_cause(run_dir) if status.reason == "exited" else None
    if failure is not None:
        status.exit_code = failure.exit_code
        status.note(failure.message)
        if status.reason == "exited":
            status.reason = "no-walls" if failure.exit_code == UNBUILT else "not-started"
    elif wait_status is not None and os.WIFSIGNALED(wait_status):
        status.signal = os.WTERMSIG(wait_status)
        if status.reason == "exited":
            status.reason = "signalled"
    elif wait_status is not None:
        status.exit_code = os.WEXITSTATUS(wait_status)
    if limits is not None and status.reason in OWN_ENDS:
        status.reason = limits.judge(status.exit_code, status.signal) or status.reason
        if status.reason in OWN_ENDS and (kills := limits.tell_kills()) is not None:
            status.note(kills)


def _find_cause(run_dir: str) -> WallError:
    """From the log: nobody but bwrap has written to it."""
    return find_cause(b"".join(entry.data for entry in read_log(run_dir)))
