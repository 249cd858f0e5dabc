"""What all processes of the keeper share: detaching from the parent, noticing that the directory
that they serve was removed, and reporting a crash.
"""

from __future__ import annotations

import errno
import io
import os
import sys

from atoll.keeper.status import record_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CRASHED = 70
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR})


def run_process(directory: str, body: Callable[[], int]) -> None:
    """Run a forked process; an error is recorded and becomes exit status CRASHED."""
    exit_code = CRASHED
    try:
        exit_code = body()
    except BaseException:  # noqa: BLE001  the last stop: what got here ends the process
        record_error(directory, _render_exception())
    finally:
        os._exit(exit_code)


def _render_exception() -> str:
    # The interpreter's own hook needs no import; by now memory may be what is lacking.
    stderr, sys.stderr = sys.stderr, io.StringIO()
    sys.__excepthook__(*sys.exc_info())
    text = sys.stderr.getvalue()
    sys.stderr = stderr
    return text


def leave_everything(kept: set[int]) -> None:
    """Detach from the parent: session, directory, umask and all descriptors but `kept`."""
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    close_all_but(kept)


def close_all_but(kept: set[int]) -> None:
    """Closes every descriptor above standard error that is not in `kept`."""
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


class ServedDirectory:
    """A directory as it is now. It is lost once its path names nothing, or another directory."""

    __slots__ = ("_identity", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity = self._find()

    def is_lost(self) -> bool:
        """False also if it cannot be read, which proves nothing."""
        try:
            return self._find() != self._identity
        except OSError:
            return False

    def _find(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise
        return found.st_dev, found.st_ino
