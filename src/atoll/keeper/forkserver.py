"""The fork server: one warm interpreter per command, which forks the keepers that it needs.

Starting an interpreter costs more than everything else that a capsule needs. A command that
starts several runs, or a program that uses the library, pays for it once. The fork server ends
when its parent closes the socket; the processes that it forked live on.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import socket
import sys

from atoll.keeper import calls, requests
from atoll.keeper.child_process import leave_everything
from atoll.keeper.holder import fork_holder
from atoll.keeper.idle_monitor import fork_idle_monitor
from atoll.keeper.peer_check import peer_pid
from atoll.keeper.rlimits import dump_no_core, raise_open_files, restore_soft_limits
from atoll.keeper.supervisor import fork_guard
from atoll.keeper.wire import WireError
from atoll.model.enclosure import EnclosureError, HoldRequest, parse


def main() -> None:
    """`SOCKET_FD LABEL`: serve requests until the socket is closed.

    `{"start": RUN_DIR}` with the descriptors (lock, ready) starts a run's guard; a third one has
    the private variables of the run. `{"hold": VIEW}` with (lock, ready) starts a holder; news come
    through the ready descriptor. With a third descriptor the holder reports its pid at once, and
    reads its cgroup from there. `{"watch": LOCK, "argv": [...], "env": {...}}` starts a command
    once the lock is free; it gets the descriptors that come with it, and their numbers as its last
    arguments. `{"frozen": KEY, "pids": [...]}` names processes that are stopped for a moment: they
    are continued, the last one first, if the client dies before it has sent an empty list.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTERM})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    calls.name_process("atoll-forksrv")
    raise_open_files()
    dump_no_core()
    sock = socket.socket(fileno=int(sys.argv[1]))
    frozen: dict[str, list[int]] = {}
    gc.freeze()  # what is shared with the children from here on stays shared
    while True:
        try:
            request, fds = requests.receive(sock)
        except (EOFError, ConnectionResetError):
            _thaw(frozen)
            os._exit(0)
        try:
            _serve(request, fds, frozen, peer_pid(sock))
            requests.send(sock, {})
        except (OSError, WireError, EnclosureError) as error:
            requests.send(sock, {"error": str(error)})
        finally:
            for fd in fds:
                os.close(fd)


def _thaw(frozen: dict[str, list[int]]) -> None:
    for pids in frozen.values():
        for pid in reversed(pids):
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue


def _serve(
    request: dict[str, object], fds: list[int], frozen: dict[str, list[int]], client: int | None
) -> None:
    match request:
        case {"frozen": str(key), "pids": list(pids)}:
            frozen[key] = pids
        case {"watch": str(path), "argv": list(argv), "env": dict(env)}:
            if os.fork() == 0:
                try:
                    _watch(path, argv, env, fds)
                finally:
                    os._exit(1)
        case {"hold": hold} if len(fds) in (2, 3):
            order = parse(HoldRequest, hold)
            if order.monitor_dir:
                _provide_idle_monitor(order.monitor_dir)
            fork_holder(order, *fds)
        case {"start": str(run_dir)} if len(fds) in (2, 3):
            private = fds[2] if len(fds) == 3 else None
            fork_guard(os.path.abspath(run_dir), fds[0], fds[1], client, private)
        case _:
            raise WireError("no such request, or not with these descriptors")


def _provide_idle_monitor(directory: str) -> None:
    """From here, since a process that a holder forks would keep its view alive."""
    try:
        fork_idle_monitor(directory)
    except OSError:  # the minders check their runs themselves
        return


def _watch(path: str, argv: list[str], env: dict[str, str], kept: list[int]) -> None:
    """Execute a command as soon as the lock is free, with its descriptors as last arguments."""
    leave_everything(set(kept))
    calls.name_process("atoll-watch")
    if kept:
        # One may be the key of the vault.
        calls.hide_descriptors()
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # already released and removed
        lock = None
    if lock is not None:
        fcntl.flock(lock, fcntl.LOCK_SH)
        os.close(lock)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    restore_soft_limits()
    for fd in kept:
        os.set_inheritable(fd, True)  # noqa: FBT003
    os.execve(argv[0], [*argv, *map(str, kept)], env)  # noqa: S606  this is a spawner
