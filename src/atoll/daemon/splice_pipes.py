"""Pipes through which the kernel moves bytes from socket to socket, in a small pool.

The kernel counts the pages of all pipes of a user, and beyond a bound every new pipe of that user
is tiny: so only a few large ones exist here, independent of the number of connections.
"""

from __future__ import annotations

import fcntl
import os
from typing import NamedTuple

SIZE_BYTES = 1 << 20
_SPARE = 4
"""How many empty pipes are kept for the next connections."""


class Pipe(NamedTuple):
    reader: int
    writer: int

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


class Pipes:
    """At most `most` at a time; a connection that gets none copies."""

    def __init__(self, most: int = 16) -> None:
        self._most = most
        self.in_use = 0
        self._spare: list[Pipe] = []

    def find(self) -> Pipe | None:
        """An empty pipe; None when there are enough, or when there can be no more."""
        if self.in_use >= self._most:
            return None
        pipe = self._spare.pop() if self._spare else _make()
        if pipe is not None:
            self.in_use += 1
        return pipe

    def take_back(self, pipe: Pipe, *, is_empty: bool) -> None:
        self.in_use -= 1
        if is_empty and len(self._spare) < _SPARE:
            self._spare.append(pipe)
        else:
            pipe.close()

    def close(self) -> None:
        """Closes the spare pipes."""
        while self._spare:
            self._spare.pop().close()


def _make() -> Pipe | None:
    try:
        pipe = Pipe(*os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError:
        # No descriptor is left: copying needs none.
        return None
    try:
        fcntl.fcntl(pipe.writer, fcntl.F_SETPIPE_SZ, SIZE_BYTES)
    except OSError:
        # The user has too many pages in pipes; a small one would be slower than a copy.
        pipe.close()
        return None
    return pipe
