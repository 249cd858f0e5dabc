"""Transient failures of the host: no descriptors, memory, threads or disk space are left.

A capsule of the same user can cause them, so none of them may end the daemon: what failed is
retried and logged once.
"""

from __future__ import annotations

import asyncio
import errno

from atoll.engine.state.database import DamagedError
from atoll.model.errors import PrerequisiteError

TRANSIENT_ERRORS = (OSError, PrerequisiteError, DamagedError, MemoryError, RuntimeError)
"""What is raised then: by files, /proc and sockets; by the store, which explains SQLite's errors;
by allocations; and by the start of a thread. A damaged database is one, too: `atoll gc` restores
it, and the daemon continues with its cached state until then.
"""
SCARCE = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EAGAIN,
    }
)
"""Errors of a system call that needs a resource of which nothing is left. `epoll_ctl` also returns
`ENOSPC` when the user watches too many descriptors."""


class TransientErrorLog:
    """Logs the failures of one activity, each once until it has passed."""

    def __init__(self, activity: str) -> None:
        self._activity = activity
        self._logged = ""

    def note(self, error: BaseException) -> None:
        """Logs the error unless it is the one that was logged last."""
        text = f"{type(error).__name__}: {error}"
        if text != self._logged:
            self._logged = text
            context = {"message": f"{self._activity} failed; trying again", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def clear(self) -> None:
        """The activity has succeeded."""
        self._logged = ""
