"""When the limits of a run are checked: often while it is busy, rarely while it is idle.

An idle run is checked rarely only as long as the idle monitor (`idle_monitor.py`) watches it.
"""

from __future__ import annotations

import os
import socket

from atoll.keeper import idle_monitor, requests
from atoll.keeper.idle_monitor import CHECK_S
from atoll.keeper.loop import READ
from atoll.keeper.run_processes import Members
from atoll.keeper.watchdog import MOST_IDLE
from atoll.keeper.wire import WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from atoll.keeper.limits import RunLimits
    from atoll.keeper.loop import Loop
    from atoll.keeper.watchdog import Activity

RARE_S = 60.0
"""The interval between checks of a run that the idle monitor watches, in case it missed something.
"""
_IDLE_CHECKS = 4
"""After this many checks without a change a run is idle."""
_RETRY_S = 60.0


class LimitChecks:
    """`directory` is that of the idle monitor, if there is one. `due_at` is when `check` has to be
    called; it may change at any turn of the loop.
    """

    def __init__(self, limits: RunLimits, loop: Loop, directory: str | None) -> None:
        self.limits = limits
        self._loop = loop
        self._directory = directory
        self.members = Members()
        self._socket: socket.socket | None = None
        self._connect_at = 0.0
        self._last: Activity | None = None
        self._idle_checks = 0
        self._is_asked = False
        self._rests = False
        self.due_at = float("inf")

    def begin(self, now: float) -> None:
        """The run is about to start."""
        self.limits.begin(now)
        if self.limits.needs_check:
            self.due_at = now

    def check(self, now: float) -> str | None:
        """The reason to end the run; None when all is well."""
        reason = self.limits.check(self.members, now)
        activity = self.limits.activity
        is_idle = activity is not None and activity.is_idle_since(self._last)
        self._last = activity
        self._idle_checks = self._idle_checks + 1 if is_idle else 0
        if not is_idle or self.limits.is_measuring:
            self._rests = False
        elif self._idle_checks >= _IDLE_CHECKS and not self._rests and not self._is_asked:
            self._ask(now)
        wait_s = RARE_S if self._rests else CHECK_S
        self.due_at = min(now + wait_s, max(now + CHECK_S, self.limits.silence_ends_at))
        return reason

    def end(self) -> None:
        """The run is over."""
        self.due_at = float("inf")
        self._disconnect()
        self.members.close()

    def _ask(self, now: float) -> None:
        """Ask the idle monitor to watch the run; it answers later."""
        activity, proc = self.limits.activity, self.members.proc
        if activity is None or proc is None or len(activity.pids) > MOST_IDLE:
            return
        pages, tasks = self.limits.marks()
        marks: dict[str, object] = {
            "pids": sorted(activity.pids),
            "ticks": activity.ticks,
            "tasks": tasks,
            "resident_pages": pages,
        }
        budget = self.limits.budget
        free = None if budget is None else budget.least_free
        if free is not None:
            marks |= {"free_bytes": free.size_bytes, "free_entries": free.entries}
        elif budget is not None:
            return
        fds = [proc]
        try:
            if self._socket is None:
                self._connect(now)
            if self._socket is not None:
                fds += [] if budget is None else [budget.open_directory()]
                requests.send(self._socket, {"watch": marks}, tuple(fds))
                self._is_asked = True
        except (OSError, WireError):
            self._disconnect()
        finally:
            for fd in fds[1:]:
                os.close(fd)

    def _connect(self, now: float) -> None:
        if self._directory is None or now < self._connect_at:
            return
        self._connect_at = now + _RETRY_S
        self._socket = idle_monitor.connect(self._directory)
        self._loop.watch(self._socket.fileno(), READ, self._receive)

    def _receive(self, _events: int) -> None:
        """Read the idle monitor's answer; anything but `watching` means that it does not watch."""
        if self._socket is None:
            return
        self._is_asked = False
        try:
            reply, fds = requests.receive(self._socket)
        except BlockingIOError:
            return
        except (EOFError, OSError, WireError):
            self._disconnect()
        else:
            for fd in fds:
                os.close(fd)
            self._rests = reply.get("watching") is True
            if reply.get("disk") is True and self.limits.budget is not None:
                self.limits.budget.expire()
        if not self._rests:
            self._idle_checks = 0
            self.due_at = min(self.due_at, 0.0)

    def _disconnect(self) -> None:
        self._rests = self._is_asked = False
        if self._socket is not None:
            self._loop.forget(self._socket.fileno())
            self._socket.close()
            self._socket = None
