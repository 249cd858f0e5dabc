"""The guard: the watcher of a single run, at levels where no holder is one (`holder.py`)."""

from __future__ import annotations

import os
import signal

from atoll.keeper import calls
from atoll.keeper.forking import leave_everything, run_process
from atoll.keeper.loop import HANDLED_SIGNALS, STOP_SIGNALS
from atoll.keeper.peers import Origin
from atoll.keeper.wards import Wards


def fork_guard(run_dir: str, lock_fd: int, ready_fd: int, starter: int | None = None) -> int:
    """Start the keeper of one run, as `Wards.start` does; returns the guard's process id."""
    pid = os.fork()
    if pid == 0:
        run_process(run_dir, lambda: _guard(run_dir, lock_fd, ready_fd, starter))
    return pid


def _guard(run_dir: str, lock_fd: int, ready_fd: int, starter: int | None) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    leave_everything({lock_fd, ready_fd})
    calls.name_process("atoll-guard")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would keep exit codes from us
    wards = Wards(run_dir, Origin(is_strict=False))
    wards.start(run_dir, lock_fd, ready_fd, starter=starter)
    os.close(ready_fd)
    while wards:
        number = _next_signal(wards.wait_s())
        if number in STOP_SIGNALS:
            wards.pass_on(number)
        wards.tend()
    return 0


def _next_signal(timeout_s: float | None) -> int:
    """0 when the time is over first."""
    if timeout_s is None:
        return signal.sigwait(HANDLED_SIGNALS)
    found = signal.sigtimedwait(HANDLED_SIGNALS, timeout_s)
    return 0 if found is None else found.si_signo
