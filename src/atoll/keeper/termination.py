"""Ends a process tree: polite signals, with a wait after each, then SIGKILL.

SIGKILL goes to whole process groups, and to what ptrace holds if that does not help: a process that
forks and exits repeatedly has exited before a signal can be sent to it alone.

`Ending` blocks for about a second at most and reaps only by `reap`. Its owner calls `advance` at
`deadline` and stops when `tree.reap` reports that no child is left, or when `is_given_up` reports
that nothing helped (another user's process, or one that hangs in the kernel).
"""

from __future__ import annotations

import os
import signal
import time

from atoll.keeper import process_tree
from atoll.keeper.tracer import Tracer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

GIVE_UP_S = 10.0
_ROUND_S = 0.01
_LONGEST_ROUND_S = 0.25
_STOP_S = 0.2
_TRACE_S = 0.5


class Ending:
    """The end of everything below `root`: first `steps` (signal, seconds to wait), then SIGKILL.

    Except those in `spared`, as it is at the time. `shell` is the process around the
    walls of a run: it and its child are not asked, since all inside would be gone with them.
    `reap` reaps dead children of the calling process and returns their numbers.
    """

    __slots__ = (
        "_give_up",
        "_latest",
        "_leftover",
        "_pause_s",
        "_reap",
        "_root",
        "_shell",
        "_spared",
        "_step_ends",
        "_steps",
        "_tracer",
        "deadline",
        "is_given_up",
    )

    def __init__(
        self,
        root: int,
        steps: list[tuple[int, float]],
        now: float,
        *,
        spared: Collection[int] = (),
        shell: int | None = None,
        reap: Callable[[], Collection[int]] | None = None,
    ) -> None:
        self._root = root
        self._spared = spared
        self._shell = shell
        self._reap = reap
        self._steps = steps
        self._step_ends: float | None = None
        self._pause_s = _ROUND_S
        self._give_up: float | None = None
        self._latest = float("inf")
        self._leftover: set[tuple[int, int]] = set()
        self._tracer: Tracer | None = None
        self.deadline = now
        self.is_given_up = False

    @property
    def leftover(self) -> int:
        """How many processes got a signal after the main one was gone."""
        return len(self._leftover)

    @property
    def is_tracing(self) -> bool:
        """Then stopped processes must not continue: they are about to be killed."""
        return self._tracer is not None

    def hasten(self, latest: float) -> None:
        """Send SIGKILL no later than `latest`, skipping remaining steps."""
        self._latest = min(self._latest, latest)
        self.deadline = min(self.deadline, self._latest)

    def advance(self, now: float, *, main_is_gone: bool) -> None:
        """Take the step that is due, if one is."""
        if now < self.deadline:
            return
        is_asking = self._steps and now < self._latest
        reached = self._ask(now) if is_asking else self._kill(now)
        if main_is_gone:
            self._leftover.update(process.identity for process in reached)

    def _ask(self, now: float) -> list[process_tree.TreeProcess]:
        """Send the signal of the next step. While walls are being built there is no process behind
        them to get it: then it is sent as soon as there is.
        """
        number, wait_s = self._steps[0]
        if self._step_ends is None:
            self._step_ends = now + wait_s
        below = self._below()
        walls = [p for p in below if self._shell in (p.pid, p.ppid)]
        reached = self._send([p for p in below if p not in walls], number, signal.SIGCONT)
        # Paused with the rest, they could not see that it has ended.
        self._send(walls, signal.SIGCONT)
        if reached or not walls or now >= self._step_ends:
            self._steps.pop(0)
            self.deadline = min(self._step_ends, self._latest)
            self._step_ends = None
        else:
            self.deadline = min(now + _ROUND_S, self._step_ends, self._latest)
        return reached

    def _kill(self, now: float) -> list[process_tree.TreeProcess]:
        if self._give_up is None:
            self._give_up = now + GIVE_UP_S
        if now >= self._give_up:
            self.is_given_up = True
            return []
        self.deadline = min(now + self._pause_s, self._give_up)
        self._pause_s = min(self._pause_s * 2, _LONGEST_ROUND_S)
        processes = self._stop_all()
        process_tree.kill_groups(processes, self._spared)
        return self._send(processes, signal.SIGKILL)

    def _stop_all(self) -> list[process_tree.TreeProcess]:
        """Stop everything before the kill: a stopped process cannot fork away from it."""
        can_trace = self._root == os.getpid()
        if self._tracer is None and not (can_trace and self._pause_s == _LONGEST_ROUND_S):
            processes, is_settled = self._send_stops()
            if is_settled or not can_trace:
                return processes
        # They fork faster than they can be listed, and leave their groups.
        if self._tracer is None:
            self._tracer = Tracer(self._root, self._spared)
        self._tracer.hold(_TRACE_S, self._reap)
        return self._below()

    def _send_stops(self) -> tuple[list[process_tree.TreeProcess], bool]:
        """Send SIGSTOP until no new process appears; the flag is true if that was achieved."""
        stopped: set[tuple[int, int]] = set()
        deadline = time.monotonic() + _STOP_S
        while True:
            processes = self._below()
            fresh = [process for process in processes if process.identity not in stopped]
            if not fresh or time.monotonic() >= deadline:
                return processes, not fresh
            for process in fresh:
                process_tree.send_signal(process, signal.SIGSTOP)
                stopped.add(process.identity)

    def _below(self) -> list[process_tree.TreeProcess]:
        return process_tree.processes_under(self._root, self._spared)

    def _send(
        self, processes: list[process_tree.TreeProcess], *numbers: int
    ) -> list[process_tree.TreeProcess]:
        """The processes that got it."""
        return [
            process
            for process in processes
            if process_tree.send_signal(process, *numbers) and not process.is_dead
        ]


def survivors_message(root: int, spared: Collection[int] = ()) -> str:
    pids = process_tree.descendants(root, spared)
    shown = ", ".join(str(pid) for pid in pids[:10]) or "unseen"
    return f"processes that could not be ended within {GIVE_UP_S:g} s: {shown}"
