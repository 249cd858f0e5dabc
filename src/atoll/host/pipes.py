"""Exchanges data with a program over its pipes, within bounds."""

from __future__ import annotations

import os
import select
import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, NamedTuple, Protocol

from atoll.host.idle_detection import LOOK_S, IdleTimer
from atoll.model.errors import DriverError, Unanswered
from atoll.model.units import render_size

_CHUNK_BYTES = 1 << 16


class Piped(Protocol):
    """A child process with unbuffered pipes."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None


class Bounds(NamedTuple):
    output_bytes: int
    """A program that writes more than this to its standard output is in error."""
    errors_bytes: int
    """How much is kept of the end of its standard error."""


class Wait:
    """A time limit of `limit_s` in all; with a `watch` the program must not be idle for long."""

    def __init__(self, program: str, limit_s: float | None, watch: IdleTimer | None) -> None:
        now = time.monotonic()
        self.program = program
        self._limit_s = limit_s
        self._deadline = None if limit_s is None else now + limit_s
        self._watch = watch
        self._look_at = now + LOOK_S

    @property
    def step_s(self) -> float | None:
        """The longest time to wait before the next `check`."""
        if self._deadline is None:
            return None
        return max(0.0, self._look_at - time.monotonic())

    def check(self) -> None:
        """Raises Unanswered on a timeout, or when the program is idle."""
        now = time.monotonic()
        if self._deadline is None or now < self._look_at:
            return
        self._look_at = now + LOOK_S
        if now >= self._deadline:
            raise Unanswered(f"`{self.program}` did not end within {self._limit_s:g} s")
        if self._watch is not None:
            self._watch.require_work(self.program)

    def is_over(self, poll: Callable[[], int | None]) -> bool:
        """Whether the program has ended; checks the time if not."""
        if poll() is not None:
            return True
        self.check()
        return False


def exchange(child: Piped, given: bytes | None, bounds: Bounds, wait: Wait) -> tuple[bytes, bytes]:
    """Writes the input and reads standard output and standard error to their ends. Returns all of
    standard output and the end of standard error. Raises DriverError when standard output exceeds
    the bounds, Unanswered as `Wait.check`.
    """
    output, errors = bytearray(), bytearray()
    left = memoryview(given or b"")
    with selectors.DefaultSelector() as selector:
        for pipe in filter(None, (child.stdout, child.stderr)):
            selector.register(pipe, selectors.EVENT_READ)
        if child.stdin is not None:
            os.set_blocking(child.stdin.fileno(), False)
            selector.register(child.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            for key, _ in selector.select(wait.step_s):
                if key.fileobj is child.stdin:
                    left = _feed(child.stdin, left)
                    if not left:
                        selector.unregister(child.stdin)
                        child.stdin.close()
                    continue
                chunk = os.read(key.fd, _CHUNK_BYTES)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif key.fileobj is child.stdout:
                    output += chunk
                    _require_size(len(output), bounds, wait.program)
                else:
                    errors += chunk
                    del errors[: -bounds.errors_bytes]
            wait.check()
    return bytes(output), bytes(errors)


def _feed(pipe: IO[bytes], left: memoryview) -> memoryview:
    """Writes a piece. Returns the rest, which is empty if the program has closed the pipe."""
    try:
        return left[os.write(pipe.fileno(), left[:_CHUNK_BYTES]) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return memoryview(b"")


def _require_size(size_bytes: int, bounds: Bounds, program: str) -> None:
    if size_bytes > bounds.output_bytes:
        raise DriverError(
            f"`{program}` wrote more than {render_size(bounds.output_bytes)} to its standard output"
        )


class Dialogue:
    """Requests to a program, and its answers, in turn. Every method raises DriverError when the
    program ends or the whole dialogue takes too long.
    """

    def __init__(self, child: Piped, program: str, *, timeout_s: float) -> None:
        if child.stdin is None or child.stdout is None:
            raise ValueError("a dialogue needs standard input and output")
        self._given, self._said = child.stdin.fileno(), child.stdout.fileno()
        self._program = program
        self._deadline = time.monotonic() + timeout_s
        self._ahead = b""

    def ask(self, request: bytes) -> None:
        """The request has to fit into a pipe: the answer is not read meanwhile."""
        left = memoryview(request)
        while left:
            self._wait([], [self._given])
            try:
                left = left[os.write(self._given, left) :]
            except BrokenPipeError as error:
                raise DriverError(f"`{self._program}` ended before it was asked") from error

    def read_line(self) -> bytes:
        while b"\n" not in self._ahead:
            if len(self._ahead) > _CHUNK_BYTES:
                raise DriverError(f"`{self._program}` wrote a line without an end")
            self._ahead += self._more()
        line, _, self._ahead = self._ahead.partition(b"\n")
        return line

    def read(self, size_bytes: int) -> bytes:
        """Exactly that many bytes."""
        pieces, have = [self._ahead], len(self._ahead)
        while have < size_bytes:
            pieces.append(self._more())
            have += len(pieces[-1])
        whole = b"".join(pieces)
        self._ahead = whole[size_bytes:]
        return whole[:size_bytes]

    def _more(self) -> bytes:
        self._wait([self._said], [])
        chunk = os.read(self._said, _CHUNK_BYTES)
        if not chunk:
            raise DriverError(f"`{self._program}` ended in the middle of an answer")
        return chunk

    def _wait(self, reading: list[int], writing: list[int]) -> None:
        left = self._deadline - time.monotonic()
        poll = select.poll()
        for fd in reading:
            poll.register(fd, select.POLLIN)
        for fd in writing:
            poll.register(fd, select.POLLOUT)
        if left <= 0 or not poll.poll(left * 1000):
            raise DriverError(f"`{self._program}` does not answer")


def limit_memory(pid: int, size_bytes: int | None) -> None:
    """Limits the data segment of a running child: code between fork and exec is unsafe with
    threads.
    """
    import resource  # noqa: PLC0415 - few programs are limited

    if size_bytes is None:
        return
    with suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        limit = size_bytes if hard == resource.RLIM_INFINITY else min(size_bytes, hard)
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))
