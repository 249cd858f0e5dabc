"""The only spawner. Every program that Atoll itself starts passes through here.

The environment is built from an allow-list, standard input is null unless given, no descriptor
is inherited unless named, and waiting always has a deadline.
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

from atoll.host import views
from atoll.host.stillness import LOOK_S, Stillness
from atoll.host.walled import News, limited, walled
from atoll.model.errors import DriverError, PrerequisiteError, Unanswered
from atoll.model.plan import Enclosure

_OWN_ENVIRONMENT = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "TMPDIR",
    "XDG_CONFIG_HOME",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_CEILING_DIRECTORIES",
)
"""What Atoll's own tools need of the owner's environment. Nothing here carries a credential."""

_SOON_S = 0.0005
_POLITE_S = 2.0
_INSIDE_S = 300.0
_TAIL_BYTES = 2000
_NO_SPACE = ("No space left on device", "Disk quota exceeded", "Out of diskspace")
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


def own_environment() -> dict[str, str]:
    kept = {key: os.environ[key] for key in _OWN_ENVIRONMENT if key in os.environ}
    return {**kept, "LC_ALL": "C.UTF-8", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}


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
) -> Completed:
    """Runs a program to its end and returns what it said.

    `keep_fds` lets the program hold a lock for as long as it lives, also when this process is
    killed meanwhile; one that is `alone` is not killed with this process' group. One inside of a
    capsule must be at work all the time, unless we are `patient`. Raises DriverError when the exit
    code is not one of `allowed`, and PrerequisiteError when the program does not exist; Unanswered
    when it waits for something inside, IsolationError when its walls cannot be built.
    """
    full, place, environment = _placed(argv, cwd, within, env)
    with News(within) as news:
        with _spawn(
            full,
            place,
            environment,
            news,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            within=within,
            pass_fds=tuple(keep_fds),
            start_new_session=alone,
        ) as child:
            watch = None if within is None or patient else Stillness(child.pid)
            limit_s = None if within is None else _INSIDE_S
            stdout, stderr = _hear(child, full[0], stdin, limit_s, watch)
        news.require_executed(full[0], child.returncode, stderr)
    completed = Completed(argv=full, code=child.returncode, stdout=stdout, stderr=stderr)
    if completed.code not in allowed:
        raise failure(completed)
    return completed


def _hear(
    child: subprocess.Popen[bytes],
    program: str,
    stdin: bytes | None,
    timeout_s: float | None,
    watch: Stillness | None,
) -> tuple[bytes, bytes]:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        while True:
            try:
                return child.communicate(stdin, None if deadline is None else LOOK_S)
            except subprocess.TimeoutExpired:
                stdin = None  # it is on its way
                if deadline is not None and time.monotonic() >= deadline:
                    message = f"`{program}` did not end inside of the capsule in {timeout_s:g} s"
                    raise Unanswered(message) from None
                if watch is not None:
                    watch.require_work(program)
    except BaseException:
        _end(child)
        raise


def _end(child: subprocess.Popen[bytes]) -> None:
    """Politely first: a git that is killed leaves its locks behind."""
    try:
        child.terminate()
        child.wait(_POLITE_S)
    except subprocess.TimeoutExpired:
        return
    finally:
        child.kill()


def _placed(
    argv: Sequence[str],
    cwd: str | None,
    within: Enclosure | None,
    env: Mapping[str, str] | None,
) -> tuple[tuple[str, ...], str | None, dict[str, str]]:
    """The whole command, its place and its environment."""
    full = tuple(argv) if within is None else within.around(tuple(argv))
    environment = {**(own_environment() if within is None else within.env), **(env or {})}
    place = cwd if cwd is not None or within is None else within.cwd
    return full, place, environment


def _spawn(
    full: tuple[str, ...],
    place: str | None,
    environment: dict[str, str],
    news: News,
    *,
    within: Enclosure | None = None,
    pass_fds: tuple[int, ...] = (),
    **streams: Any,
) -> subprocess.Popen[bytes]:
    """Starts a program, in the view of `within` where that has one."""
    if on_command is not None:
        on_command(replayable(full, cwd=place))
    try:
        if within is None or not within.holder:
            return subprocess.Popen(full, cwd=place, env=environment, pass_fds=pass_fds, **streams)
        with (
            views.borrowed(within.holder) as view,
            walled(within, full, place, environment, news) as it,
        ):
            news.keep(view.lock)
            return subprocess.Popen(
                it.words,
                env=it.env,
                # Behind walls no lock is inherited: it could be freed there, and its file written.
                pass_fds=(*it.fds, *(() if within.walls else (*pass_fds, view.lock))),
                # A few system calls, no lock.
                preexec_fn=view.entering(it.cwd, drop=limited(within, view, it.drop)),  # noqa: PLW1509
                **streams,
            )
    except subprocess.SubprocessError as error:
        # All that is known of a child that could not enter: its view has ended, or has no `place`.
        raise DriverError(f"`{full[0]}` cannot start in `{place}` of the capsule") from error
    except (FileNotFoundError, PermissionError) as error:
        # PATH may hold directories that we may not search: that is "not found", too.
        if isinstance(error, PermissionError) and _is_there(full[0], environment):
            raise
        if place is not None and not os.path.isdir(place):
            raise DriverError(
                f"`{full[0]}` cannot start: there is no directory `{place}`"
            ) from error
        raise PrerequisiteError(
            f"`{full[0]}` is not installed", hint=f"install `{full[0]}`"
        ) from error


def _is_there(program: str, environment: Mapping[str, str]) -> bool:
    import shutil  # noqa: PLC0415 - only when something is wrong

    return shutil.which(program, mode=os.F_OK, path=environment.get("PATH")) is not None


def failure(completed: Completed) -> DriverError:
    said = os.fsdecode(completed.stderr[-_TAIL_BYTES:]).strip() or "it said nothing"
    return DriverError(
        f"`{replayable(completed.argv)}` failed with exit code {completed.code}: {said}"
    )


def tells_of_no_space(said: str) -> bool:
    """Whether a tool failed because the disk is full: it has only words for that."""
    return any(words in said for words in _NO_SPACE)


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
    full, place, environment = _placed(program.argv, program.cwd, program.within, program.env)
    with open(os.memfd_create("stdin"), "w+b", buffering=0) as given:
        if isinstance(program.stdin, bytes):
            given.write(program.stdin)
            given.seek(0)
        child = _spawn(
            full,
            place,
            environment,
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
            if program.memory_bytes is not None:
                _limit_memory(child.pid, program.memory_bytes)
            yield child
        finally:
            # Nobody has reaped it yet, so its number and its group's are nobody else's.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    news.require_executed(full[0], child.returncode, bytes(complaints))


def _has_left(child: subprocess.Popen[bytes], deadline: float | None) -> bool:
    """Waits for its end, without reaping it."""
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT
    left = None if deadline is None else deadline - time.monotonic()
    return wait_until(
        lambda: os.waitid(os.P_PID, child.pid, how) is not None, timeout_s=left, interval_s=0.001
    )


def _limit_memory(pid: int, size_bytes: int) -> None:
    """From outside: what would run between fork and exec is not safe beside threads."""
    import resource  # noqa: PLC0415 - few programs are limited

    with suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        limit = size_bytes if hard == resource.RLIM_INFINITY else min(size_bytes, hard)
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))


Companion = subprocess.Popen[bytes]
"""A process of our own that serves us."""


def launch(argv: Sequence[str], *, keep_fds: Sequence[int], env: Mapping[str, str]) -> Companion:
    """Starts a companion of this process, out of reach of the terminal's signals."""
    return subprocess.Popen(
        tuple(argv),
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=tuple(keep_fds),
        start_new_session=True,
    )


def wait_until(
    condition: Callable[[], bool], *, timeout_s: float | None, interval_s: float = 0.02
) -> bool:
    """The one place that waits: polls `condition` until it holds or the time is over.

    Often at first, since most of what is waited for takes a moment, then every `interval_s`.
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
