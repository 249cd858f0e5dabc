"""First and last acts of the keeper's processes: each leaves its parent's world, and ends."""

from __future__ import annotations

import io
import os
import sys

from atoll.keeper.status import record_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CRASHED = 70


def run_process(directory: str, body: Callable[[], int]) -> None:
    """Run a forked process to its end; an error is written down and becomes exit status CRASHED."""
    exit_code = CRASHED
    try:
        exit_code = body()
    except BaseException:  # noqa: BLE001  the last stop: what got here ends the process
        record_error(directory, _render_exception())
    finally:
        os._exit(exit_code)


def _render_exception() -> str:
    # The interpreter's own hook needs no import; by now memory may be what is lacking.
    stderr, sys.stderr = sys.stderr, io.StringIO()
    sys.__excepthook__(*sys.exc_info())
    text = sys.stderr.getvalue()
    sys.stderr = stderr
    return text


def leave_everything(kept: set[int]) -> None:
    """Hold nothing of the world that we were started from but the descriptors in `kept`."""
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
