"""The process that starts a run in the foreground, until it has become the run's client."""

from __future__ import annotations

import os

from atoll.keeper.loop import READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from atoll.keeper.loop import Loop


class Starter:
    """Watched from the run's side: one that was killed will never come."""

    __slots__ = ("_handle", "_loop", "is_gone")

    def __init__(self, pid: int, loop: Loop) -> None:
        self._loop = loop
        self._handle: int | None = None
        self.is_gone = False
        try:
            self._handle = os.pidfd_open(pid)
        except ProcessLookupError:
            self.is_gone = True
        except OSError:  # no pidfd here (old kernel, filter): the time limit has to do
            return
        else:
            loop.watch(self._handle, READ, self._end)

    def forget(self) -> None:
        """It has come."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._loop.forget(handle)
            os.close(handle)

    def _end(self, _events: int) -> None:
        self.forget()
        self.is_gone = True
