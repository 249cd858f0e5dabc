"""The journal of one capsule's network: who was asked for, whether it was allowed, how much passed.

Names, ports and numbers only; never a header, a path, a query or a body. It is bounded in size and
in lines per second: equal refusals become one line with a count, and of very many different ones
only their number is kept. A journal that cannot be written is no reason to stop: what is missing
is counted, and told once it can be written again.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections import Counter
from pathlib import Path

from atoll.engine.attempts import JOURNAL, MOST_BYTES, OLDER, Attempt

_GATHER_S = 1.0
_MOST_KINDS = 100
"""Different refusals within `_GATHER_S`; the rest becomes a number."""
_REST = "(others)"
_LOST = "(lost)"


class Journal:
    """Written by one daemon at a time, from its event loop."""

    def __init__(self, directory: Path, *, most_bytes: int = MOST_BYTES) -> None:
        self._directory = directory
        self._most = most_bytes
        self._handle: int | None = None
        self._size = 0
        self._again: Counter[tuple[str, str, int, str]] = Counter()
        """Refusals that were written within the last moment, and how often they came again."""
        self._timer: asyncio.TimerHandle | None = None
        self._last_id = time.time_ns()
        self._lost = 0

    def note(  # noqa: PLR0913 - one line has these parts
        self,
        *,
        via: str,
        place: str,
        port: int,
        allowed: bool,
        why: str,
        address: str | None = None,
        sent: int = 0,
        received: int = 0,
        took_s: float | None = None,
        begun: int = 0,
    ) -> int:
        """Writes down one attempt, and returns its number.

        One that was allowed is noted when it begins, and with that number as `begun` and how long
        it took when it ends.
        """
        at = time.time()
        if not allowed:
            self._refuse(Attempt(at, via, place, port, allowed, why, address))
            return 0
        self._last_id += not begun
        number = begun or self._last_id
        took = None if took_s is None else round(took_s, 3)
        self._write(
            Attempt(at, via, place, port, allowed, why, address, sent, received, took, 1, number)
        )
        return number

    def _refuse(self, attempt: Attempt) -> None:
        kind = (attempt.via, attempt.place, attempt.port, attempt.why)
        if kind in self._again:
            self._again[kind] += 1
        elif len(self._again) < _MOST_KINDS:
            self._again[kind] = 0
            self._write(attempt)
        else:
            self._again[attempt.via, _REST, 0, "too many different ones"] += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self.flush)

    def flush(self) -> None:
        """Writes the counts down."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        again, self._again = self._again, Counter()
        at = time.time()
        for (via, place, port, why), count in again.items():
            if count:
                self._write(Attempt(at, via, place, port, allowed=False, why=why, times=count))

    def close(self) -> None:
        self.flush()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _write(self, attempt: Attempt) -> None:
        line = attempt.render()
        if self._lost:
            why = "the journal could not be written"
            lost = Attempt(attempt.at, "", _LOST, 0, allowed=False, why=why, times=self._lost)
            # Perhaps only a part of a line found room: it ends here.
            line = b"\n" + lost.render() + line
        try:
            written = os.write(self._open(len(line)), line)
        except OSError:
            written = 0
        self._size += written
        self._lost = 0 if written == len(line) else self._lost + 1

    def _open(self, more: int) -> int:
        """The file, with room for so many bytes."""
        if self._handle is not None and self._size + more > self._most:
            os.close(self._handle)
            self._handle = None
            os.replace(self._directory / JOURNAL, self._directory / OLDER)
        if self._handle is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            handle = os.open(self._directory / JOURNAL, flags | os.O_CLOEXEC, 0o600)
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                os.close(handle)
                raise OSError("not a journal of ours")
            self._handle, self._size = handle, status.st_size
        return self._handle
