"""Where keepers are born: one warm interpreter per command, which forks what the command needs.

Starting an interpreter costs more than everything else that a capsule needs. A command that
starts several runs, or a program that uses the library, pays for it once. The nursery ends when
whoever started it closes the socket; what it gave birth to lives on.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import socket
import sys

from atoll.keeper import asking, calls
from atoll.keeper.forking import leave_everything
from atoll.keeper.guard import fork_guard
from atoll.keeper.holder import fork_holder
from atoll.keeper.lookout import fork_lookout
from atoll.keeper.peers import peer_pid
from atoll.keeper.process_limits import raise_open_files, restore_open_files
from atoll.keeper.wire import WireError


def main() -> None:
    """`SOCKET_FD LABEL`: serve requests until the socket is closed.

    `{"start": RUN_DIR}` with the descriptors (lock, ready) starts a run's guard;
    `{"hold": VIEW}` with (lock, ready) a holder; news come through the ready descriptor. With a
    third descriptor the holder says who it is at once, and reads its group from there.
    `{"watch": LOCK, "argv": [...], "env": {...}}` starts a command once the lock is free; it gets
    the descriptors that come with it, and their numbers as its last arguments.
    `{"frozen": KEY, "pids": [...]}` names processes that are stopped for a moment: they go on, the
    last one first, if whoever stopped them dies before it has named none.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTERM})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the children
    calls.name_process("atoll-nursery")
    raise_open_files()
    sock = socket.socket(fileno=int(sys.argv[1]))
    frozen: dict[str, list[int]] = {}
    gc.freeze()  # what is shared with the children from here on stays shared
    while True:
        try:
            request, fds = asking.receive(sock)
        except (EOFError, ConnectionResetError):
            _thaw(frozen)
            os._exit(0)
        try:
            _serve(request, fds, frozen, peer_pid(sock))
            asking.send(sock, {})
        except (OSError, WireError) as error:
            asking.send(sock, {"error": str(error)})
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
            return

        case {"watch": str(path), "argv": list(argv), "env": dict(env)}:
            if os.fork() == 0:
                try:
                    _watch(path, argv, env, fds)
                finally:
                    os._exit(1)
            return
    view = request.get("hold")
    if len(fds) != 2 and not (view and len(fds) == 3):
        raise WireError("a lock and a pipe are needed")
    lock_fd, ready_fd, *gates = fds
    if isinstance(view, dict):
        _provide_lookout(view)
        fork_holder(view, lock_fd, ready_fd, *gates)
    else:
        fork_guard(os.path.abspath(str(request["start"])), lock_fd, ready_fd, client)


def _provide_lookout(view: dict[str, object]) -> None:
    """From here, since a process that a holder forks would keep its view alive."""
    directory = view.get("lookout")
    if isinstance(directory, str):
        try:
            fork_lookout(directory)
        except OSError:  # the keepers of the runs look by themselves
            return


def _watch(path: str, argv: list[str], env: dict[str, str], kept: list[int]) -> None:
    """Become a command as soon as the lock is free; it is told the descriptors that it gets."""
    leave_everything(set(kept))
    calls.name_process("atoll-watch")
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # it was free so soon that somebody has cleaned up
        lock = None
    if lock is not None:
        fcntl.flock(lock, fcntl.LOCK_SH)
        os.close(lock)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    restore_open_files()
    for fd in kept:
        os.set_inheritable(fd, True)  # noqa: FBT003
    os.execve(argv[0], [*argv, *map(str, kept)], env)  # noqa: S606  this is a spawner
