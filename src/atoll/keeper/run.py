"""One command while it runs: its input, its output, its signals. Knows no client and no log."""

from __future__ import annotations

import fcntl
import os
import termios
import time
from functools import partial

from atoll.keeper import process_tree, spawn
from atoll.keeper.launchers import find_launcher
from atoll.keeper.loop import READ, WRITE, Loop
from atoll.keeper.start_error import StartError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.keeper.limits import RunLimits
    from atoll.model.enclosure import KeeperSpec

STDIN_LIMIT_BYTES = 1024 * 1024

_CHUNK_BYTES = 64 * 1024
_TERMINAL_S = 0.02
_TERMINAL_BYTES = 1024 * 1024  # far more than the kernel keeps for a terminal


class Command:
    """Passes output to `emit(stream, data)`; the main process is gone once `wait_status` is set."""

    def __init__(
        self,
        spec: KeeperSpec,
        loop: Loop,
        emit: Callable[[str, bytes], None],
        limits: RunLimits | None = None,
    ) -> None:
        self.launcher = find_launcher(spec.walls)
        self._limits = limits
        self._spec = spec
        self._loop = loop
        self._emit = emit
        self._child: spawn.Child | None = None
        self._sources: dict[int, str] = {}
        self._stdin: int | None = None
        self._input = bytearray()
        self._last_input = b"\n"
        self._input_has_ended = False
        self._is_paused = False
        self._awaits_terminal = spec.tty
        self._input_at = 0.0
        self._size = (spec.rows, spec.cols)
        self.wait_status: int | None = None
        self.failure: StartError | None = None
        """Why the command was never started."""

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def is_over(self) -> bool:
        return self.failure is not None or self.wait_status is not None

    @property
    def input_due_at(self) -> float:
        """When `feed_terminal` has something to try; in the past: as soon as possible."""
        return self._input_at if self._awaits_terminal else float("inf")

    @property
    def is_stdin_full(self) -> bool:
        return len(self._input) >= STDIN_LIMIT_BYTES

    def start(self) -> None:
        try:
            self._child = spawn.start_command(self._spec, self._size, self._limits)
        except StartError as error:
            self.failure = error
            return
        self._stdin = self._child.stdin
        self._sources[self._child.stdout] = "out"
        if self._child.stderr is not None:
            self._sources[self._child.stderr] = "err"
        self._watch()

    def main_exited(self, wait_status: int) -> None:
        self.wait_status = wait_status
        if self._child is not None:
            launcher = self.launcher if os.WIFEXITED(wait_status) else None
            self.failure = spawn.read_failure(self._child.failure, launcher)

    def pause(self, *, is_paused: bool) -> None:
        """Leave the output where it is, so that the command has to wait."""
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            self._watch()

    def feed(self, data: bytes) -> None:
        """Input for the command; lost if it has closed its end, as with any pipe."""
        if self._stdin is not None and not self._input_has_ended and data:
            self._input += data
            self._last_input = data[-1:]
            self._watch()

    def feed_terminal(self) -> None:
        """Give the terminal its input as soon as the command has taken it.

        Before, no process would get the signal of a Ctrl-C, and the terminal would drop it.
        """
        if self._awaits_terminal and self._child is not None and self._sources:
            try:
                is_free = os.tcgetpgrp(self._child.stdout) <= 0
            except OSError:
                is_free = False
            self._awaits_terminal = is_free and not self.is_over
            self._input_at = time.monotonic() + _TERMINAL_S
            if not self._awaits_terminal:
                self._watch()

    def feed_end(self) -> None:
        if self._stdin is None or self._input_has_ended:
            return
        if self._spec.tty:
            # A terminal has no end; its end-of-file character works at the start of a line,
            # and in the middle of one when it comes twice.
            end: bytes = termios.tcgetattr(self._stdin)[6][termios.VEOF]
            self.feed(end if self._last_input in (b"\n", end) else end * 2)
            return
        self._input_has_ended = True
        if not self._input:
            self._close_stdin()

    def resize(self, rows: int, cols: int) -> None:
        """Give the terminal this size, now or when it is opened; without one nothing happens."""
        self._size = (rows, cols)
        if self._spec.tty and self._child is not None and self._sources:
            spawn.resize(self._child.stdout, rows, cols)

    def send_signal(self, number: int) -> None:
        """To the terminal's foreground process group, or to the command's own."""
        if self._child is None or self.wait_status is not None:
            return
        group = os.tcgetpgrp(self._child.stdout) if self._spec.tty else 0
        try:
            try:
                os.killpg(group or self._command_group(self._child.pid), number)
            except ProcessLookupError:  # it has not got as far as its own session yet
                os.kill(self._child.pid, number)
        except PermissionError:  # it has become another user's
            return

    def _command_group(self, main: int) -> int:
        """The process group of the command: in a sandbox that is a grandchild of the started
        process, in the group of the first process inside, which ignores what it does not handle.
        """
        if self._spec.walls is not None:
            below = process_tree.processes_under(main)
            inner = {process.pid for process in below if process.ppid == main}
            return next((process.group for process in below if process.ppid in inner), main)
        return main

    def drain(self) -> None:
        """Take what the command has left in its pipes, and close them. Nothing may run any more."""
        for fd in list(self._sources):
            left = _TERMINAL_BYTES if self._spec.tty else fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
            while left > 0 and fd in self._sources:
                taken = self._read(fd)
                if taken == 0:
                    break
                left -= taken
        for fd in list(self._sources):
            self._close_source(fd)
        self._close_stdin()
        if self._child is None:
            return
        os.close(self._child.failure)
        if self._child.terminal is not None:
            os.close(self._child.terminal)
            os.close(self._child.stdout)

    def _watch(self) -> None:
        wanted = dict.fromkeys(self._sources, 0 if self._is_paused else READ)
        if self._stdin is not None:
            can_write = bool(self._input) and not self._awaits_terminal
            wanted[self._stdin] = wanted.get(self._stdin, 0) | (WRITE if can_write else 0)
        for fd, events in wanted.items():
            self._loop.watch(fd, events, partial(self._serve, fd))

    def _serve(self, fd: int, ready: int) -> None:
        if ready & READ and fd in self._sources:
            self._read(fd)
        if ready & WRITE and fd == self._stdin:
            self._write(fd)

    def _read(self, fd: int) -> int:
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return 0
        except OSError:  # no process has the terminal open
            data = b""
        if data:
            self._emit(self._sources[fd], data)
        else:
            self._close_source(fd)
        return len(data)

    def _write(self, fd: int) -> None:
        try:
            with memoryview(self._input) as view:
                written = os.write(fd, view[:_CHUNK_BYTES])
        except BlockingIOError:
            return
        except OSError:  # the command has closed its stdin
            self._close_stdin()
            return
        del self._input[:written]
        if self._input_has_ended and not self._input:
            self._close_stdin()
        else:
            self._watch()

    def _close_source(self, fd: int) -> None:
        self._loop.forget(fd)
        del self._sources[fd]
        if not self._spec.tty:  # a terminal is input, too
            os.close(fd)

    def _close_stdin(self) -> None:
        fd, self._stdin = self._stdin, None
        self._input.clear()
        if fd is None:
            return
        if self._spec.tty:
            self._watch()
        else:
            self._loop.forget(fd)
            os.close(fd)
