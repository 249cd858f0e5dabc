"""What is kept in memory of a run's output: the end of each stream, within a bound.

A run may write as much as `limits.output` allows, by default 1 GB, and only the log on disk is
bounded in itself. The collector keeps the end of each stream and counts what was dropped
before it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from atoll.model.state import Outcome, Run

LIMIT_BYTES = 64 << 20
"""Of each of the two streams; as much as its log keeps."""
TEXT_LIMIT_BYTES = 16 << 20
"""The same for output that becomes part of a JSON object, where a byte may take six."""


class _Tail:
    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._pieces: deque[bytes] = deque()
        self._size_bytes = 0
        self.dropped_bytes = 0

    def add(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size_bytes += len(data)
        while (excess := self._size_bytes - self._limit_bytes) > 0:
            first = self._pieces.popleft()
            if len(first) > excess:
                self._pieces.appendleft(first[excess:])
            dropped = min(len(first), excess)
            self._size_bytes -= dropped
            self.dropped_bytes += dropped

    def content(self) -> bytes:
        # Small pieces are joined once, and not kept beside the whole.
        whole = b"".join(self._pieces)
        self._pieces = deque([whole])
        return whole


class Captured:
    """The last `limit_bytes` of `out` and of `err`."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._streams = {"out": _Tail(limit_bytes), "err": _Tail(limit_bytes)}

    def add(self, stream: str, data: bytes) -> None:
        self._streams[stream].add(data)

    def content(self, stream: str) -> bytes:
        return self._streams[stream].content()

    def dropped_bytes(self, stream: str) -> int:
        """How much of the stream came before `content` and is not kept."""
        return self._streams[stream].dropped_bytes


class Result(NamedTuple):
    """A finished run with its output, as the library gives it."""

    run: Run
    outcome: Outcome
    stdout: bytes
    stderr: bytes
    dropped_bytes: int = 0
    """What both streams held before that: of each, the last 64 MiB are kept."""

    @property
    def exit_code(self) -> int:
        return self.outcome.shell_code
