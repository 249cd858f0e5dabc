"""The only spawner. Every program that Atoll itself starts passes through here.

A program of the host is found by `programs.find_program`, never by the PATH of a capsule, and gets
a constant environment. Standard input is null unless given, no descriptor is inherited unless
named, and output is bounded.
"""

from __future__ import annotations

import os
import select
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple

from atoll.host import programs, views
from atoll.host.pipes import Bounds, Dialogue, Wait, exchange, limit_memory
from atoll.host.programs import own_environment as own_environment  # noqa: PLC0414 - for importers
from atoll.host.stillness import LOOK_S, Stillness
from atoll.host.walled import News, last_signal, limited, walled
from atoll.model.errors import DriverError, PrerequisiteError
from atoll.model.plan import Enclosure

_SOON_S = 0.0005
_POLITE_S = 2.0
_INSIDE_S = 300.0
_TAIL_BYTES = 2000
_COMPLAINTS_BYTES = 1 << 20
_HOST_OUTPUT_BYTES = 256 << 20
_INSIDE_OUTPUT_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 16

on_command: Callable[[str], None] | None = None
"""Set by `--verbose`: hears each command as a line that can be pasted into a shell."""


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
        """As a newline ends them, and nothing else: names hold other separators, too."""
        return self.text.removesuffix("\n").split("\n") if self.stdout else []


class Program(NamedTuple):
    """What `stream` starts."""

    argv: tuple[str, ...]
    cwd: str | None = None
    within: Enclosure | None = None
    env: Mapping[str, str] | None = None
    stdin: bytes | int = b""
    """The input itself, or the descriptor of a file that holds it."""
    keep_fds: tuple[int, ...] = ()
    memory_bytes: int | None = None
    """All that it may allocate; files that it maps do not count."""


Ended = Literal["whole", "size", "time"]


class Streamed(NamedTuple):
    completed: Completed
    ended: Ended
    """Which limit it reached; `whole` when none, and only then the exit code is its own."""

    @property
    def is_good(self) -> bool:
        return self.ended == "whole" and self.completed.code == 0


def run(  # noqa: PLR0913 - one door, and every caller names what it needs
    argv: Sequence[str],
    *,
    cwd: str | None = None,
    within: Enclosure | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    keep_fds: Sequence[int] = (),
    alone: bool = False,
    allowed: Sequence[int] = (0,),
    patient: bool = False,
    limit_bytes: int | None = None,
) -> Completed:
    """Runs a program to its end and returns its output.

    `keep_fds` lets the program hold a lock for as long as it lives, also when this process is
    killed meanwhile; one that is `alone` is not killed with this process' group. One inside of a
    capsule must be at work all the time, unless we are `patient`. A program that writes more than
    `limit_bytes` to its standard output is ended; of its standard error the end is kept. Raises
    DriverError then, and when the exit code is not one of `allowed`; PrerequisiteError when the
    program does not exist; Unanswered when it waits for something inside, IsolationError when its
    walls cannot be built.
    """
    start = _plan_start(argv, cwd, within, env, is_patient=patient)
    default = _HOST_OUTPUT_BYTES if within is None else _INSIDE_OUTPUT_BYTES
    with News(within) as news:
        with _spawn(
            start,
            news,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            within=within,
            pass_fds=tuple(keep_fds),
            start_new_session=alone,
        ) as child:
            watch = None if within is None or patient else Stillness(child.pid)
            wait = Wait(start.argv[0], None if within is None else _INSIDE_S, watch)
            bounds = Bounds(default if limit_bytes is None else limit_bytes, _COMPLAINTS_BYTES)
            try:
                stdout, stderr = exchange(child, stdin, bounds, wait)
                wait_until(lambda: wait.is_over(child.poll), timeout_s=None, interval_s=0.002)
            except BaseException:
                _end(child)
                raise
        news.require_executed(start.argv[0], child.returncode, stderr)
    completed = Completed(argv=start.argv, code=child.returncode, stdout=stdout, stderr=stderr)
    if completed.code not in allowed:
        raise failure(completed)
    return completed


def _end(child: subprocess.Popen[bytes]) -> None:
    """Politely first: a git that is killed leaves its locks behind."""
    try:
        child.terminate()
        child.wait(_POLITE_S)
    except subprocess.TimeoutExpired:
        return
    finally:
        child.kill()


class _Start(NamedTuple):
    """The whole command with its place and environment."""

    argv: tuple[str, ...]
    executable: str | None
    """Of a program of the host; what is behind walls is found there."""
    cwd: str | None
    env: dict[str, str]


def _plan_start(
    argv: Sequence[str],
    cwd: str | None,
    within: Enclosure | None,
    env: Mapping[str, str] | None,
    *,
    is_patient: bool = False,
) -> _Start:
    """Raises PrerequisiteError when a program without walls is not to be found."""
    own = dict(env or {})
    if within is None:
        whole = tuple(argv)
        return _Start(whole, programs.require_program(whole[0]), cwd, {**own_environment(), **own})
    full, place = within.around(tuple(argv)), within.cwd if cwd is None else cwd
    environment = {**within.env, **own}
    if within.walls is not None:
        return _Start(full, None, place, environment)
    # Without walls it has all rights of the owner's, so nothing that lies in a workspace is
    # started, neither by us nor by it; unless it is to run the project's own hooks.
    path = programs.trusted_path(environment.get("PATH", ""), avoid=(within.cwd,))
    found = programs.find_program(full[0]) or programs.find_program(full[0], path=path)
    if not is_patient:
        environment["PATH"] = path
    return _Start(full, found or programs.require_program(full[0]), place, environment)


def _spawn(
    start: _Start,
    news: News,
    *,
    within: Enclosure | None = None,
    pass_fds: tuple[int, ...] = (),
    **streams: Any,
) -> subprocess.Popen[bytes]:
    """Starts a program, in the view of `within` where that has one."""
    full, place = start.argv, start.cwd
    if on_command is not None:
        on_command(replayable(full, cwd=place))
    try:
        if within is None or not within.holder:
            return subprocess.Popen(
                full,
                executable=start.executable,
                cwd=place,
                env=start.env,
                pass_fds=pass_fds,
                **streams,
            )
        with (
            views.borrowed(within.holder) as view,
            walled(within, full, place, start.env, news) as it,
        ):
            news.keep(view.lock)
            last = last_signal(within)
            return subprocess.Popen(
                it.words,
                executable=start.executable,
                env=it.env,
                # Behind walls no lock is inherited: it could be freed there, and its file written.
                pass_fds=(*it.fds, *(() if within.walls else (*pass_fds, view.lock))),
                # A few system calls, no lock.
                preexec_fn=view.entering(it.cwd, limited(within, view, it.drop), last=last),  # noqa: PLW1509
                **streams,
            )
    except subprocess.SubprocessError as error:
        # All that is known of a child that could not enter: its view has ended, or has no `place`.
        raise DriverError(f"`{full[0]}` cannot start in `{place}` of the capsule") from error
    except FileNotFoundError as error:
        if place is not None and not os.path.isdir(place):
            raise DriverError(
                f"`{full[0]}` cannot start: there is no directory `{place}`"
            ) from error
        missing = f"`{full[0]}` is not installed"
        raise PrerequisiteError(missing, hint=f"install `{full[0]}`") from error


def failure(completed: Completed) -> DriverError:
    said = os.fsdecode(completed.stderr[-_TAIL_BYTES:]).strip() or "it said nothing"
    line = replayable(completed.argv)
    return DriverError(f"`{line}` failed with exit code {completed.code}: {said}")


def replayable(argv: Sequence[str], *, cwd: str | None = None) -> str:
    line = shlex.join(argv)
    return line if cwd is None else f"cd {shlex.quote(cwd)} && {line}"


def stream(
    program: Program,
    take: Callable[[bytes], object],
    *,
    limit_bytes: int,
    timeout_s: float | None,
) -> Streamed:
    """Hands what a program says to `take`, piece by piece, until it or a limit is at its end.

    The program is not trusted to end: it leads a process group of its own, which is gone when
    this returns or raises, as it also does when `take` raises. `limit_bytes` counts all that it
    says; of its complaints the last are kept. Any exit code is a result. Raises as `run` does when
    the program cannot start.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    ended: Ended = "whole"
    argv = program.argv if program.within is None else program.within.around(program.argv)
    complaints = bytearray()
    heard = 0
    with (
        News(program.within) as news,
        _leading(program, news, complaints) as child,
        selectors.DefaultSelector() as selector,
    ):
        for pipe in filter(None, (child.stdout, child.stderr)):
            selector.register(pipe, selectors.EVENT_READ)
        watch = None if program.within is None else Stillness(child.pid)
        while selector.get_map() and ended == "whole":
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                ended = "time"
                break
            ready = selector.select(left if watch is None else min(LOOK_S, left or LOOK_S))
            if not ready and watch is not None:
                watch.require_work(argv[0])
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK_BYTES)
                heard += len(chunk)
                if not chunk:
                    selector.unregister(key.fd)
                elif heard > limit_bytes:
                    ended = "size"
                elif key.fileobj is child.stdout:
                    take(chunk)
                else:
                    complaints += chunk
                    del complaints[:-_TAIL_BYTES]
        if ended == "whole" and not _has_left(child, deadline):
            ended = "time"
    return Streamed(Completed(argv, child.returncode, b"", bytes(complaints)), ended)


@contextmanager
def _leading(
    program: Program, news: News, complaints: bytearray
) -> Iterator[subprocess.Popen[bytes]]:
    """A program at the head of its own session and process group, which is gone afterwards.

    Raises as `run` does when it could not start after all.
    """
    start = _plan_start(program.argv, program.cwd, program.within, program.env)
    with open(os.memfd_create("stdin"), "w+b", buffering=0) as given:
        if isinstance(program.stdin, bytes):
            given.write(program.stdin)
            given.seek(0)
        child = _spawn(
            start,
            news,
            within=program.within,
            pass_fds=program.keep_fds,
            stdin=given if isinstance(program.stdin, bytes) else program.stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
    with child:
        try:
            limit_memory(child.pid, program.memory_bytes)
            yield child
        finally:
            # Nobody has reaped it yet, so its number and its group's are nobody else's.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    news.require_executed(start.argv[0], child.returncode, bytes(complaints))


def _has_left(child: subprocess.Popen[bytes], deadline: float | None) -> bool:
    """Waits for its end, without reaping it."""
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT
    left = None if deadline is None else deadline - time.monotonic()
    return wait_until(
        lambda: os.waitid(os.P_PID, child.pid, how) is not None, timeout_s=left, interval_s=0.001
    )


Companion = subprocess.Popen[bytes]
"""A process of our own that serves us."""


def launch(argv: Sequence[str], *, keep_fds: Sequence[int], env: Mapping[str, str]) -> Companion:
    """Starts a companion of this process, out of reach of the terminal's signals.

    Raises PrerequisiteError when its program may not be started on the host.
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
    """A program of the host that answers questions; it is gone afterwards, as with `stream`."""
    start = _plan_start(program.argv, program.cwd, None, program.env)
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with _spawn(start, News(None), stdin=pipe, stdout=pipe, stderr=null, bufsize=0,
                start_new_session=True) as child:  # fmt: skip
        try:
            limit_memory(child.pid, program.memory_bytes)
            yield Dialogue(child, program.argv[0], timeout_s=timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def wait_until(
    condition: Callable[[], bool], *, timeout_s: float | None, interval_s: float = 0.02
) -> bool:
    """The one place that waits: polls `condition` until it holds or the time is over, often at
    first, since most of what is waited for takes a moment, then every `interval_s`.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    step_s = min(_SOON_S, interval_s)
    while not condition():
        if deadline is not None and time.monotonic() >= deadline:
            return False
        pause(step_s)
        step_s = min(step_s * 1.5, interval_s)
    return True


def pause(seconds: float) -> None:
    select.select([], [], [], seconds)
