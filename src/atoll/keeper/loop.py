"""All waiting: the keeper's loop for descriptors, signals and a deadline, and polling."""

from __future__ import annotations

import os
import select
import selectors
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE
STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_FIRST_STEP_S = 0.0005
HANDLED_SIGNALS = STOP_SIGNALS | {signal.SIGCHLD}


class Loop:
    """Calls back when a watched descriptor is ready.

    Signals only raise a flag; a flood of one kind can thus not hide another.
    """

    def __init__(self) -> None:
        # Not epoll: what it watches is counted per user, and a capsule could use that up.
        self._selector = selectors.PollSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self.watch(self._wake_read, READ, self._drain_wake)
        self.children_changed = True
        self.stop_is_asked = False

    def catch_signals(self) -> None:
        """Take over the signals that were blocked before the fork."""
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._on_child)
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_stop)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        """Call `callback` with the events that are ready; no events means no more calls."""
        is_known = fd in self._selector.get_map()
        if not events:
            if is_known:
                self._selector.unregister(fd)
        elif not is_known:
            self._selector.register(fd, events, callback)
        elif self._selector.get_key(fd).events != events:
            self._selector.modify(fd, events, callback)

    def forget(self, fd: int) -> None:
        """Must come before the descriptor is closed."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def turn(self, timeout_s: float | None) -> None:
        """Wait once. A callback may forget a descriptor whose own call is still to come."""
        for key, events in self._selector.select(timeout_s):
            callback: Callable[[int], None] = key.data
            callback(events)

    def _drain_wake(self, _events: int) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            return

    def _on_child(self, _number: int, _frame: FrameType | None) -> None:
        self.children_changed = True

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stop_is_asked = True


def wait_until(
    condition: Callable[[], bool], *, timeout_s: float | None, interval_s: float = 0.02
) -> bool:
    """Polls `condition` until it is true or the time is up: often at first, then every
    `interval_s`. All polling goes through here. Returns whether it is true.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    step_s = min(_FIRST_STEP_S, interval_s)
    while not condition():
        if deadline is not None and time.monotonic() >= deadline:
            return False
        pause(step_s)
        step_s = min(step_s * 1.5, interval_s)
    return True


def pause(seconds: float) -> None:
    select.select([], [], [], seconds)
