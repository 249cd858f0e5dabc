"""A program that runs in a capsule's view, started by the view's holder.

The holder has one thread, so it can fork and enter limits and walls safely; this process may have
many. The program ends when this process disconnects, however that happens.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Mapping
from typing import IO, Self

from atoll.keeper import requests
from atoll.keeper.launchers import Launcher, find_launcher
from atoll.keeper.spawn import read_failure
from atoll.keeper.start_error import NO_WALLS, StartError
from atoll.keeper.wire import WireError
from atoll.model.enclosure import Enclosure, KeeperSpec, encode
from atoll.model.errors import DriverError, IsolationError, StateError, Unanswered

_TIMEOUT_S = 20.0


class ViewProcess:
    """The part of `subprocess.Popen` that `host.process` needs."""

    def __init__(
        self, sock: socket.socket, pid: int, failure: int, launcher: Launcher | None
    ) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        self.returncode: int | None = None
        self._sock = sock
        self._failure = failure
        self._failed: StartError | None = None
        self._launcher = launcher

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in filter(None, (self.stdin, self.stdout, self.stderr)):
            pipe.close()
        try:
            # One that was killed early may not have reported anything.
            if self.wait() >= 0:
                self._failed = read_failure(self._failure, self._launcher)
        finally:
            self._sock.close()
            os.close(self._failure)

    def poll(self) -> int | None:
        while self.returncode is None and select.select([self._sock], [], [], 0)[0]:
            self._receive()
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Raises TimeoutError."""
        while self.returncode is None:
            if not select.select([self._sock], [], [], timeout_s)[0]:
                raise TimeoutError
            self._receive()
        return self.returncode

    def terminate(self) -> None:
        self._send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._send_signal(signal.SIGKILL)

    def require_executed(self, program: str, place: str | None, stderr: bytes) -> None:
        """For a program that has ended, after `with`; `stderr` is what it or its launcher wrote.

        Raises IsolationError when a wall could not be built; Unanswered when the program or its
        directory does not exist behind the walls, DriverError when it could not be executed in a
        view without walls.
        """
        failed = self._failed
        if failed is None:
            return
        if self._launcher is None:
            raise DriverError(
                f"`{program}` cannot start in `{place}` of the capsule: {failed.message}"
            )
        code, message = failed.exit_code, failed.message
        if not message:
            cause = self._launcher.find_cause(stderr)
            code, message = cause.exit_code, cause.message
        if code == NO_WALLS:
            raise IsolationError(
                f"cannot create the sandbox of `{program}`: {message}", hint="atoll doctor"
            )
        raise Unanswered(f"inside of the capsule, {message}")

    def _send_signal(self, number: int) -> None:
        if self.returncode is None:
            try:
                requests.send(self._sock, {"signal": int(number)})
            except ConnectionError:  # the holder died, and the program with it
                return

    def _receive(self) -> None:
        try:
            message, _ = requests.receive(self._sock)
        except (EOFError, ConnectionError):  # likewise
            self.returncode = -signal.SIGKILL
            return
        match message:
            case {"wait_status": int(status)}:
                self.returncode = os.waitstatus_to_exitcode(status)


def start(
    argv: tuple[str, ...],
    *,
    within: Enclosure,
    cwd: str | None,
    env: Mapping[str, str],
    has_stdin: bool,
) -> ViewProcess:
    """Starts a program in the view of `within`, with pipes as its standard streams.

    Raises StateError when the view has ended, DriverError when the holder refuses.
    """
    spec = KeeperSpec(
        run="", argv=argv, env=dict(env), cwd=within.cwd if cwd is None else cwd,
        tty=False, rows=0, cols=0, foreground=False, stdin="null",
        timeout_s=None, grace_s=0, log_limit_bytes=0, hold_ports=(),
        umask=_umask(), walls=within.walls,
        limits=within.limits if within.walls is not None else None,
    )  # fmt: skip
    theirs: list[int] = []
    ours: list[int] = []
    try:
        sock = requests.connect(within.holder, timeout_s=_TIMEOUT_S)
    except (FileNotFoundError, ConnectionError) as error:
        raise _ended(within) from error
    try:
        _open_streams(theirs, ours, has_stdin=has_stdin)
        reply, fds = requests.ask(sock, {"execute": encode(spec)}, tuple(theirs))
        child = ViewProcess(sock, int(str(reply["pid"])), fds[0], find_launcher(within.walls))
    except (EOFError, ConnectionError) as error:
        _close(sock, ours)
        raise _ended(within) from error
    except WireError as error:
        _close(sock, ours)
        raise DriverError(f"`{argv[0]}` cannot start in the capsule: {error}") from error
    except BaseException:
        _close(sock, ours)
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    child.stdout, child.stderr = (os.fdopen(fd, "rb", buffering=0) for fd in ours[:2])
    child.stdin = os.fdopen(ours[2], "wb", buffering=0) if has_stdin else None
    return child


def _open_streams(theirs: list[int], ours: list[int], *, has_stdin: bool) -> None:
    """`theirs` are standard input, output and error; `ours` the ends of output, error and input."""
    outputs = [os.pipe(), os.pipe()]
    ours += [reader for reader, _ in outputs]
    if has_stdin:
        reader, writer = os.pipe()
        ours.append(writer)
        theirs.append(reader)
    else:
        theirs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    theirs += [writer for _, writer in outputs]


def _umask() -> int:
    """Without changing it, which other threads would notice."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))


def _close(sock: socket.socket, fds: list[int]) -> None:
    sock.close()
    for fd in fds:
        os.close(fd)


def _ended(within: Enclosure) -> StateError:
    return StateError(f"the view in `{within.holder}` has ended", hint="try again")
