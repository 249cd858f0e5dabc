"""`--status-fd`: how a run ended, on a descriptor that nothing inside a capsule has.

`run` exits with the command's own code, so exit code 6 alone does not say whether a wall could not
be built or the command ended with 6, and what is written to standard error may be the command's.
One JSON object on a descriptor of the caller's choice says which: `run` with its outcome when the
command was started, `error` when Atoll itself failed. Nothing is written when the command line
could not be parsed. Descriptors 0, 1 and 2 are refused: the command writes there, too.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable
from typing import TypeVar

import click

from atoll.model.errors import SpecError

F = TypeVar("F", bound=Callable[..., int | None])

_open: list[int] = []
"""The descriptor of this invocation, if it has one."""
_failures: list[str] = []


def reset() -> None:
    """Clears the state before an invocation: one process may have several."""
    _open.clear()
    _failures.clear()


def report(envelope: dict[str, object]) -> None:
    """Writes the object. Failures are kept for `take_failures` and do not change the exit code."""
    while _open:
        fd = _open.pop()
        content = json.dumps(envelope, ensure_ascii=True).encode("ascii") + b"\n"
        try:
            while content:
                content = content[os.write(fd, content) :]
        except OSError as error:
            _failures.append(f"cannot write to `--status-fd {fd}`: {error.strerror}")


def take_failures() -> list[str]:
    """Returns the failures to write, and forgets them."""
    failures = [*_failures]
    _failures.clear()
    return failures


def status_option(function: F) -> F:
    return click.option(
        "--status-fd", type=click.IntRange(3), metavar="N", expose_value=False, is_eager=True,
        callback=_require,
        help="Write the outcome to this file descriptor, as one JSON object.",
    )(function)  # fmt: skip


def _require(context: click.Context, parameter: click.Parameter, fd: int | None) -> None:
    del context, parameter
    if fd is None:
        return
    hint = f"--status-fd {fd} {fd}>FILE"
    try:
        mode = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    except (OSError, OverflowError) as error:
        # OverflowError: the number does not fit the system call.
        reason = getattr(error, "strerror", None) or os.strerror(errno.EBADF)
        raise SpecError(f"`--status-fd {fd}`: {reason}", hint=hint) from error
    if mode == os.O_RDONLY:
        raise SpecError(f"`--status-fd {fd}`: not open for writing", hint=hint)
    os.set_inheritable(fd, False)  # noqa: FBT003
    _open.append(fd)
