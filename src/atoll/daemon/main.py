"""The daemon's two processes: a watcher that does nothing else, and the worker that it keeps up.

The watcher owns the control socket, so that a client that asks while a worker is replaced only
waits. It replaces a worker that has ended, and one whose event loop no longer runs. A worker ends
with its watcher; both hold the daemon's lock.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import time
from pathlib import Path

from atoll.daemon.heartbeat import INTERVAL_S, Heartbeat, Pulse, is_traced
from atoll.daemon.watcher_memory import WatcherMemory
from atoll.engine.network import daemon_client
from atoll.host import sockets
from atoll.host.procfs import is_stopped
from atoll.keeper import calls, rlimits, wire
from atoll.model.errors import StateError

LOG_LIMIT_BYTES = 4 << 20
_GIVEN_UP = 3
"""The exit code of a worker that is not to be restarted: it was stopped, or nothing needs it."""
_STOP = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_PAUSE_S = 0.3
_REST_S = 10.0
"""A worker that exits sooner than this has failed."""
_MOST_FAILURES = 5
_SHORT_S = 1.0
"""Between two attempts to start a worker while the machine has no process or memory for it."""
_DUMP = signal.SIGUSR1
"""On this signal a worker, even one that is stuck, writes the stacks of its threads to the log."""
_DUMP_S = 2.0


def main() -> None:
    """`HOME LOCK_FD`, as `atoll.engine.network.daemon_client` starts it."""
    home, lock_fd = Path(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(lock_fd, False)  # noqa: FBT003
    directory = daemon_client.directory_of(home)
    _take_log(directory)
    calls.name_process("atoll-daemon")
    sockets.allow_many()
    rlimits.dump_no_core()
    listener = wire.listen(directory, daemon_client.SOCKET, socket.SOCK_SEQPACKET)
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_STOP, signal.SIGCHLD})
    failures, is_short = 0, False
    memory = WatcherMemory()
    while failures < _MOST_FAILURES:
        began = time.monotonic()
        try:
            heartbeat = Heartbeat()
            worker = _fork_worker(home, listener, heartbeat, memory)
        except OSError as error:
            # The user has no process or memory left: both are waited for.
            if not is_short:
                _say(f"no worker can be started now: {error}")
            is_short = True
            if signal.sigtimedwait(_STOP, _SHORT_S):
                break
            continue
        is_short = False
        code = watch(worker, Pulse(heartbeat))
        heartbeat.close()
        if code == _GIVEN_UP:
            break
        lived_s = time.monotonic() - began
        _say(f"the worker ended with {code} after {lived_s:.1f} s")
        failures = failures + 1 if lived_s < _REST_S else 0
        if signal.sigtimedwait(_STOP, _PAUSE_S * failures):
            break
    # The next command that needs a daemon starts one, of the version installed by then.
    wire.remove(directory, daemon_client.SOCKET)
    daemon_client.lock_of(home).path.unlink(missing_ok=True)


def _take_log(directory: Path) -> None:
    path = directory / daemon_client.LOG
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    if path.is_file() and path.stat().st_size > LOG_LIMIT_BYTES:
        os.replace(path, path.with_name(f"{daemon_client.LOG}.old"))
    handle = os.open(path, flags, 0o600)
    for number in (1, 2):
        os.dup2(handle, number)
    os.close(handle)


def _fork_worker(
    home: Path, listener: socket.socket, heartbeat: Heartbeat, memory: WatcherMemory
) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if calls.die_with_parent(signal.SIGKILL, parent):
                enable_dump()
                signal.pthread_sigmask(signal.SIG_SETMASK, ())
                # Not before the fork: the watcher needs none of it.
                from atoll.daemon.worker import work  # noqa: PLC0415

                work(home, listener, heartbeat, memory)
                code = _GIVEN_UP
        except StateError as error:
            # Another version has taken the home over: the next command starts its own daemon.
            _say(str(error))
            code = _GIVEN_UP
        except BaseException as error:  # noqa: BLE001 - a crash is logged, then raised
            import traceback  # noqa: PLC0415

            _say("".join(traceback.format_exception(error)))
        finally:
            os._exit(code)
    return pid


def enable_dump() -> None:
    """In the worker: the signal `_DUMP` writes the stacks of all threads into the log."""
    faulthandler.register(_DUMP, file=2, all_threads=True)


def watch(worker: int, pulse: Pulse) -> int:
    """Waits until the worker has ended, and ends one that is stuck; returns its exit code.

    A signal that asks the watcher to end is passed on. The timeout of the wait does not include
    time during which the machine was suspended.
    """
    while True:
        info = signal.sigtimedwait({*_STOP, signal.SIGCHLD}, INTERVAL_S)
        if info is not None and info.si_signo != signal.SIGCHLD:
            os.kill(worker, signal.SIGTERM)
        pid, status = os.waitpid(worker, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if info is None and pulse.is_lost(is_held=is_traced(worker)):
            return _kill(worker)


def _kill(worker: int) -> int:
    """Ends a worker that is stuck, after it has written where, and returns its exit code."""
    if is_stopped(worker):
        # It would write no dump.
        _say("the worker does not respond and is replaced: a signal has stopped it")
    else:
        _say("the worker does not respond and is replaced; what it is doing:")
        os.kill(worker, _DUMP)
        # Time for the dump.
        signal.sigtimedwait({signal.SIGCHLD}, _DUMP_S)
    os.kill(worker, signal.SIGKILL)
    _, status = os.waitpid(worker, 0)
    return os.waitstatus_to_exitcode(status)


def _say(text: str) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    os.write(2, f"{stamp} {text.rstrip()}\n".encode())
