"""The two processes of one run: the guard watches, the minder works.

guard (session leader, subreaper) ── minder (subreaper) ── the run's tree

If the minder dies, its orphans come to the guard, which kills them and writes the outcome `lost`.
If the guard dies, the kernel tells the minder, which does the same; if the guard has a holder
(`holder.py`) and that dies, the guard does it, too. Both hold the lock on the run until their
last moment; nothing else does.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time

from atoll.keeper import calls, tree, wire
from atoll.keeper.ending import Ending, survivors_message
from atoll.keeper.loop import HANDLED_SIGNALS, Loop
from atoll.keeper.minder import Minder
from atoll.keeper.spec import load_spec
from atoll.keeper.status import Status, find_error, load_status, record_error, write_status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CRASHED = 70


def run_process(run_dir: str, body: Callable[[], int]) -> None:
    """Run a forked process to its end; an error is written down and becomes exit status CRASHED."""
    exit_code = CRASHED
    try:
        exit_code = body()
    except BaseException:  # noqa: BLE001  the last stop: what got here ends the process
        record_error(run_dir, _render_exception())
    finally:
        os._exit(exit_code)


def _render_exception() -> str:
    # The interpreter's own hook needs no import; by now memory may be what is lacking.
    stderr, sys.stderr = sys.stderr, io.StringIO()
    sys.__excepthook__(*sys.exc_info())
    text = sys.stderr.getvalue()
    sys.stderr = stderr
    return text


def fork_guard(run_dir: str, lock_fd: int, ready_fd: int, *, is_held: bool = False) -> int:
    """Start the keeper of one run, whose spec is in `run_dir`; returns its process id.

    `ready_fd` gets one JSON line as soon as clients can connect: `{"pid": minder, "guard": guard}`,
    or `{"error": message}`. A guard that `is_held` ends its run when its parent dies.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        holder = parent if is_held else None
        run_process(run_dir, lambda: _guard(run_dir, lock_fd, ready_fd, holder))
    return pid


def _guard(run_dir: str, lock_fd: int, news: int, holder: int | None) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    os.setsid()
    leave_everything({lock_fd, news})
    calls.become_subreaper()
    calls.name_process("atoll-guard")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would keep exit codes from us
    guard = os.getpid()
    if holder is not None and not calls.die_with_parent(signal.SIGTERM, holder):
        return CRASHED
    minder = os.fork()
    if minder == 0:
        run_process(run_dir, lambda: _minder(run_dir, guard, news))
    os.close(news)
    wait_status = _watch_minder(minder, holder)
    if wait_status != 0:
        survivors = _sweep()
        wire.remove(run_dir)
        _record_loss(run_dir, guard, wait_status, survivors)
    return 0


def leave_everything(kept: set[int]) -> None:
    """Hold nothing of the world that we were started from but the descriptors in `kept`."""
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


def _minder(run_dir: str, guard: int, news: int) -> int:
    loop = Loop()
    loop.catch_signals()
    calls.become_subreaper()
    calls.name_process("atoll-keeper")
    if not calls.die_with_parent(signal.SIGTERM, guard):
        loop.stop_is_asked = True
    try:
        minder = Minder(run_dir, load_spec(run_dir), loop, guard)
    except Exception as error:
        _tell(news, {"error": str(error)})
        raise
    _tell(news, {"pid": os.getpid(), "guard": guard})
    return 0 if minder.serve() else 1


def _tell(news: int, value: dict[str, object]) -> None:
    try:
        os.write(news, json.dumps(value).encode("ascii") + b"\n")
    except BrokenPipeError:  # the starter was killed; the run does not need it
        return
    finally:
        os.close(news)


def _watch_minder(minder: int, holder: int | None) -> int:
    """The minder's wait status. Until then, pass on to it what asks us to stop."""
    while True:
        number = signal.sigwait(HANDLED_SIGNALS)
        if number != signal.SIGCHLD:
            # Without its holder the view that the run lives in has nobody who may end it.
            is_lost = holder is not None and os.getppid() != holder
            os.kill(minder, signal.SIGKILL if is_lost else number)
            continue
        for child in tree.reap()[0]:
            if child.pid == minder:
                return child.wait_status


def _sweep() -> str | None:
    """Kill what the minder has left behind; a message if that was not possible."""
    ending = Ending(os.getpid(), [], time.monotonic())
    while tree.reap()[1]:
        now = time.monotonic()
        ending.advance(now, main_is_gone=True)
        if ending.is_given_up:
            return survivors_message(os.getpid())
        signal.sigtimedwait({signal.SIGCHLD}, max(0.0, ending.deadline - now))
    return None


def _record_loss(run_dir: str, guard: int, wait_status: int, survivors: str | None) -> None:
    try:
        status = load_status(run_dir)
    except (OSError, ValueError):
        status = None
    if status is None:
        process = tree.find_process(guard)
        status = Status(keeper=None, guard=None if process is None else process.identity)
    if status.state == "ended":  # the minder got as far as that
        return
    status.state = "ended"
    status.reason = "lost"
    status.ended_at = time.time()
    if os.WIFSIGNALED(wait_status):
        status.note(f"the keeper was killed by signal {os.WTERMSIG(wait_status)}")
    else:
        status.note(f"the keeper failed: {find_error(run_dir) or 'nothing is known'}")
    if survivors is not None:
        status.note(survivors)
    try:
        write_status(run_dir, status)
    except OSError as error:  # then the free lock has to tell it
        record_error(run_dir, f"the outcome could not be written: {error}\n")
