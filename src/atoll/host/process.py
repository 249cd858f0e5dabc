"""Starts every program that Atoll itself runs.

Programs of the host are found by `programs.find_program`, never by the PATH of a capsule, and get
a constant environment. Standard input is /dev/null unless given, no descriptor is inherited unless
named, and output is bounded.
"""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from atoll.host import programs
from atoll.host.idle_detection import IdleTimer
from atoll.host.pipes import Bounds, Dialogue, Wait, exchange, limit_memory
from atoll.host.programs import own_environment as own_environment  # noqa: PLC0414 - for importers
from atoll.keeper.loop import pause as pause  # noqa: PLC0414 - for importers
from atoll.keeper.loop import wait_until as wait_until  # noqa: PLC0414 - for importers
from atoll.model.enclosure import Enclosure
from atoll.model.errors import DriverError, IsolationError, PrerequisiteError

if TYPE_CHECKING:
    from atoll.host.view_process import ViewProcess

_TERMINATE_S = 2.0
_INSIDE_S = 300.0
_TAIL_BYTES = 2000
_ERRORS_BYTES = 1 << 20
_HOST_OUTPUT_BYTES = 256 << 20
_INSIDE_OUTPUT_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 16
_LOOK_S = 0.05

on_command: Callable[[str], None] | None = None
"""Set by `--verbose`: called with each command as a line that can be pasted into a shell."""


class Completed(NamedTuple):
    argv: tuple[str, ...]
    code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        return os.fsdecode(self.stdout)

    @property
    def lines(self) -> list[str]:
        """Split at newlines only: file names may contain other line separators."""
        return self.text.removesuffix("\n").split("\n") if self.stdout else []


class Program(NamedTuple):
    """A program for `stream` or `converse`."""

    argv: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    stdin: bytes | int = b""
    """The input itself, or the descriptor of a file that holds it."""
    keep_fds: tuple[int, ...] = ()
    memory_bytes: int | None = None
    """The limit of its data segment and private mappings; mapped files do not count."""
    is_owners: bool = False
    """Whether it is a command of the owner's, whose environment is `env` alone."""


Ended = Literal["whole", "size", "time"]


class Streamed(NamedTuple):
    completed: Completed
    ended: Ended
    """The limit that it reached. The exit code is its own only if this is `whole`."""

    @property
    def is_good(self) -> bool:
        return self.ended == "whole" and self.completed.code == 0


def run(  # noqa: PLR0913 - callers name what they need
    argv: Sequence[str],
    *,
    cwd: str | None = None,
    within: Enclosure | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    keep_fds: Sequence[int] = (),
    alone: bool = False,
    allowed: Sequence[int] = (0,),
    limit_bytes: int | None = None,
    timeout_s: float | None = None,
) -> Completed:
    """Runs a program to its end and returns its output.

    `keep_fds` are inherited, for example so that the program holds a lock when this process is
    killed; behind walls nothing is inherited. With `alone` the program is in a session of its own.
    It is terminated when it writes more than `limit_bytes` to standard output or takes longer than
    `timeout_s`; the end of its standard error is kept.

    Raises DriverError then, and when the exit code is not in `allowed`; PrerequisiteError when the
    program does not exist; Unanswered when a program inside a capsule is idle for long;
    IsolationError when its walls cannot be built; StateError when the view of `within` has ended.
    """
    start = _plan_start(argv, cwd, within, env)
    default = _HOST_OUTPUT_BYTES if within is None else _INSIDE_OUTPUT_BYTES
    child: subprocess.Popen[bytes] | ViewProcess
    if within is not None and within.has_view:
        child = _start_in_view(start, within, keep_fds, has_stdin=stdin is not None)
    else:
        child = _spawn(
            start,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=tuple(keep_fds),
            start_new_session=alone,
        )
    with child:
        watch = None if within is None else IdleTimer(child.pid)
        limit_s = _INSIDE_S if timeout_s is None and within is not None else timeout_s
        wait = Wait(start.argv[0], limit_s, watch)
        bounds = Bounds(default if limit_bytes is None else limit_bytes, _ERRORS_BYTES)
        try:
            stdout, stderr = exchange(child, stdin, bounds, wait)
            wait_until(lambda: wait.is_over(child.poll), timeout_s=None, interval_s=0.002)
        except BaseException:
            _end(child)
            raise
    if not isinstance(child, subprocess.Popen):
        child.require_executed(start.argv[0], start.cwd, stderr)
    completed = Completed(start.argv, child.wait(), stdout, stderr)
    if completed.code not in allowed:
        raise failure(completed)
    return completed


def _end(child: subprocess.Popen[bytes] | ViewProcess) -> None:
    """SIGTERM first: a git that is killed leaves its lock files behind."""
    try:
        child.terminate()
        child.wait(_TERMINATE_S)
    except (subprocess.TimeoutExpired, TimeoutError):
        return
    finally:
        child.kill()


class _Start(NamedTuple):
    """A command with its directory and environment."""

    argv: tuple[str, ...]
    executable: str | None
    """The path of the program; None behind walls, where it is looked up inside."""
    cwd: str | None
    env: dict[str, str]


def _plan_start(
    argv: Sequence[str],
    cwd: str | None,
    within: Enclosure | None,
    env: Mapping[str, str] | None,
) -> _Start:
    """Raises PrerequisiteError when the program does not exist, IsolationError for walls without a
    view.
    """
    own = dict(env or {})
    if within is None:
        whole = tuple(argv)
        return _Start(whole, programs.require_program(whole[0]), cwd, {**own_environment(), **own})
    full, place = tuple(argv), within.cwd if cwd is None else cwd
    environment = {**within.env, **own}
    if within.has_walls:
        if not within.has_view:
            raise IsolationError("a sandboxed program needs a view", hint="atoll doctor")
        return _Start(full, None, place, environment)
    # Without walls it has all rights of the owner, so neither it nor its children start a program
    # from the workspace.
    path = programs.trusted_path(environment.get("PATH", ""), avoid=(within.cwd,))
    found = programs.find_program(full[0]) or programs.find_program(full[0], path=path)
    environment["PATH"] = path
    return _Start(full, found or programs.require_program(full[0]), place, environment)


def _start_in_view(
    start: _Start, within: Enclosure, keep_fds: Sequence[int], *, has_stdin: bool
) -> ViewProcess:
    from atoll.host import view_process  # noqa: PLC0415 - few commands start anything in a view

    if keep_fds and not within.has_walls:
        raise ValueError("a program in a view inherits no descriptor")
    if on_command is not None:
        on_command(replayable(start.argv, cwd=start.cwd))
    argv = start.argv if start.executable is None else (start.executable, *start.argv[1:])
    return view_process.start(
        argv, within=within, cwd=start.cwd, env=start.env, has_stdin=has_stdin
    )


def _spawn(
    start: _Start, *, pass_fds: tuple[int, ...] = (), **streams: Any
) -> subprocess.Popen[bytes]:
    """Starts a program of the host; its pipes are not buffered."""
    full, place = start.argv, start.cwd
    if on_command is not None:
        on_command(replayable(full, cwd=place))
    try:
        return subprocess.Popen(
            full,
            executable=start.executable,
            cwd=place,
            env=start.env,
            pass_fds=pass_fds,
            bufsize=0,
            **streams,
        )
    except FileNotFoundError as error:
        if place is not None and not os.path.isdir(place):
            raise DriverError(
                f"`{full[0]}` cannot start: there is no directory `{place}`"
            ) from error
        missing = f"`{full[0]}` is not installed"
        raise PrerequisiteError(missing, hint=f"install `{full[0]}`") from error


def failure(completed: Completed) -> DriverError:
    said = os.fsdecode(completed.stderr[-_TAIL_BYTES:]).strip() or "no error message"
    line = replayable(completed.argv)
    return DriverError(f"`{line}` failed with exit code {completed.code}: {said}")


def replayable(argv: Sequence[str], *, cwd: str | None = None) -> str:
    line = shlex.join(argv)
    return line if cwd is None else f"cd {shlex.quote(cwd)} && {line}"


def stream(  # noqa: C901 - one loop over output, time and end
    program: Program,
    take: Callable[[bytes], object],
    *,
    limit_bytes: int,
    timeout_s: float | None,
    until_exit: bool = False,
    on_start: Callable[[int], object] | None = None,
) -> Streamed:
    """Passes the output of a program to `take`, piece by piece, until it ends or reaches a limit.

    With `until_exit` it ends when the program itself exits, also while processes that it has left
    in the background hold its output open. `on_start` gets its process id.

    The program leads a process group of its own, which is killed before this returns or raises,
    also when `take` raises. `limit_bytes` counts standard output and standard error; the end of
    standard error is kept. Any exit code is a result. Raises DriverError or PrerequisiteError when
    the program cannot start.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    ended: Ended = "whole"
    errors = bytearray()
    received = 0
    with _leading(program) as child, selectors.DefaultSelector() as selector:
        if on_start is not None:
            on_start(child.pid)
        for pipe in filter(None, (child.stdout, child.stderr)):
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map() and ended == "whole":
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                ended = "time"
                break
            # Before the pipes are looked at, so that all that it has written is read.
            is_last = until_exit and _has_exited(child)
            ready = selector.select(0 if is_last else _left_until_look(left, until_exit=until_exit))
            if is_last and not ready:
                break
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK_BYTES)
                received += len(chunk)
                if not chunk:
                    selector.unregister(key.fd)
                elif received > limit_bytes:
                    ended = "size"
                elif key.fileobj is child.stdout:
                    take(chunk)
                else:
                    errors += chunk
                    del errors[:-_TAIL_BYTES]
        if ended == "whole" and not _has_left(child, deadline):
            ended = "time"
    return Streamed(Completed(program.argv, child.returncode, b"", bytes(errors)), ended)


@contextmanager
def _leading(program: Program) -> Iterator[subprocess.Popen[bytes]]:
    """A program that leads its own session and process group, which is killed afterwards."""
    start = _plan_start(program.argv, program.cwd, None, program.env)
    if program.is_owners:
        start = start._replace(env=dict(program.env or {}))
    with open(os.memfd_create("stdin"), "w+b", buffering=0) as given:
        if isinstance(program.stdin, bytes):
            given.write(program.stdin)
            given.seek(0)
        child = _spawn(
            start,
            pass_fds=program.keep_fds,
            stdin=given if isinstance(program.stdin, bytes) else program.stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    with child:
        try:
            limit_memory(child.pid, program.memory_bytes)
            yield child
        finally:
            # It is not reaped yet, so its process id cannot belong to another process.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def _left_until_look(left: float | None, *, until_exit: bool) -> float | None:
    """How long to wait for output before it is looked at whether the program has exited."""
    if not until_exit:
        return left
    return _LOOK_S if left is None else min(left, _LOOK_S)


def _has_exited(child: subprocess.Popen[bytes]) -> bool:
    """Does not reap it."""
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, child.pid, how) is not None


def _has_left(child: subprocess.Popen[bytes], deadline: float | None) -> bool:
    """Whether the program has ended by `deadline`; does not reap it."""
    left = None if deadline is None else deadline - time.monotonic()
    return wait_until(lambda: _has_exited(child), timeout_s=left, interval_s=0.001)


Companion = subprocess.Popen[bytes]
"""A long-lived process of Atoll."""


def launch(argv: Sequence[str], *, keep_fds: Sequence[int], env: Mapping[str, str]) -> Companion:
    """Starts a companion in a session of its own, without standard streams.

    Raises PrerequisiteError when its program does not exist.
    """
    return subprocess.Popen(
        tuple(argv),
        executable=programs.require_program(argv[0]),
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=tuple(keep_fds),
        start_new_session=True,
    )


@contextmanager
def converse(program: Program, *, timeout_s: float) -> Iterator[Dialogue]:
    """A program of the host that answers requests; its process group is killed afterwards."""
    start = _plan_start(program.argv, program.cwd, None, program.env)
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with _spawn(start, stdin=pipe, stdout=pipe, stderr=null, start_new_session=True) as child:
        try:
            limit_memory(child.pid, program.memory_bytes)
            yield Dialogue(child, program.argv[0], timeout_s=timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
