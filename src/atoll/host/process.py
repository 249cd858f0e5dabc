"""The only spawner. Every program that Atoll itself starts passes through here.

The environment is built from an allow-list, standard input is null unless given, no descriptor
is inherited unless named, and waiting always has a deadline.
"""

from __future__ import annotations

import os
import select
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from atoll.model.errors import DriverError, PrerequisiteError
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

_TAIL_BYTES = 2000

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
    allowed: Sequence[int] = (0,),
) -> Completed:
    """Runs a program to its end and returns what it said.

    `keep_fds` lets the program hold a lock for as long as it lives, also when this process is
    killed meanwhile. Raises DriverError when the exit code is not one of `allowed`, and
    PrerequisiteError when the program does not exist.
    """
    full = tuple(argv) if within is None else within.around(tuple(argv))
    environment = {**(own_environment() if within is None else within.env), **(env or {})}
    place = cwd if cwd is not None or within is None else within.cwd
    if on_command is not None:
        on_command(replayable(full, cwd=place))
    try:
        done = subprocess.run(
            full,
            cwd=place,
            env=environment,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            check=False,
            pass_fds=tuple(keep_fds),
        )
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
    completed = Completed(argv=full, code=done.returncode, stdout=done.stdout, stderr=done.stderr)
    if completed.code not in allowed:
        raise failure(completed)
    return completed


def _is_there(program: str, environment: Mapping[str, str]) -> bool:
    import shutil  # noqa: PLC0415 - only when something is wrong

    return shutil.which(program, mode=os.F_OK, path=environment.get("PATH")) is not None


def failure(completed: Completed) -> DriverError:
    said = os.fsdecode(completed.stderr[-_TAIL_BYTES:]).strip() or "it said nothing"
    return DriverError(
        f"`{replayable(completed.argv)}` failed with exit code {completed.code}: {said}"
    )


def replayable(argv: Sequence[str], *, cwd: str | None = None) -> str:
    line = shlex.join(argv)
    return line if cwd is None else f"cd {shlex.quote(cwd)} && {line}"


def launch(argv: Sequence[str], *, keep_fds: Sequence[int], env: Mapping[str, str]) -> None:
    """Starts a program that detaches by itself, and waits until its first process has left."""
    done = subprocess.run(
        tuple(argv),
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
        pass_fds=tuple(keep_fds),
    )
    if done.returncode != 0:
        raise DriverError(f"`{argv[0]}` could not start (exit code {done.returncode})")


def wait_until(
    condition: Callable[[], bool], *, timeout_s: float | None, interval_s: float = 0.02
) -> bool:
    """The one place that waits: polls `condition` until it holds or the time is over."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not condition():
        if deadline is not None and time.monotonic() >= deadline:
            return False
        pause(interval_s)
    return True


def pause(seconds: float) -> None:
    select.select([], [], [], seconds)
