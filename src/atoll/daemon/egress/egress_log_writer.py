"""The egress log of one capsule: destinations, whether they were allowed, and bytes.

Names, ports and numbers only, and of requests to brokered hosts the method and path; never a
header, a query or a body. It is bounded in size and in lines per second, and a flood does not
replace what was written before it: the first file is kept, equal refusals become one line with a
count, and once the lines of a burst are used up, attempts of one kind are summed up in one line a
minute. If the log cannot be written, connections continue: missing lines are counted, and the count
is written later.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from pathlib import Path
from typing import NamedTuple

from atoll.daemon.egress.limits import Clock, TokenBucket
from atoll.engine.network.egress_log import FIRST, JOURNAL, MOST_BYTES, OLDER, EgressAttempt

_GATHER_S = 1.0
_FLOOD_GATHER_S = 60.0
"""How long equal attempts are counted before the sum is written, and while there is a flood."""
LINE_BURST, LINES_PER_S = 4000, 0.25
"""Of allowed attempts, and again of refused ones, so that a flood of refusals hides no connection.
At this rate a file of `MOST_BYTES` holds the last hours of a flood.
"""
_MOST_KINDS = {True: 1000, False: 100}
"""Allowed and refused attempts that are counted apart; the rest becomes a number."""
_REST = "(others)"
_LOST = "(lost)"
_SUMMED = -1
"""The number of an attempt that has no lines of its own."""


class _Kind(NamedTuple):
    via: str
    place: str
    port: int
    allowed: bool
    why: str
    ask: str = ""
    failed: bool = False

    def columns(self) -> tuple[str, str, int, bool, str]:
        """As an attempt begins, after its time."""
        return self.via, self.place, self.port, self.allowed, self.why


class _Sum:
    """Of attempts that were not written one by one."""

    def __init__(self) -> None:
        self.times = self.sent = self.received = 0

    def add(self, times: int, sent: int = 0, received: int = 0) -> None:
        self.times += times
        self.sent += sent
        self.received += received

    def render(self, kind: _Kind, at: float) -> EgressAttempt:
        return EgressAttempt(
            at,
            *kind.columns(),
            sent=self.sent,
            received=self.received,
            took_s=0.0 if kind.allowed else None,
            times=self.times,
            ask=kind.ask,
            failed=kind.failed,
        )


class Journal:
    """Written by one daemon at a time, from its event loop."""

    def __init__(
        self, directory: Path, *, most_bytes: int = MOST_BYTES, clock: Clock = time.monotonic
    ) -> None:
        self._directory = directory
        self._most = most_bytes
        self._handle: int | None = None
        self._size = 0
        self._lines = {
            allowed: TokenBucket(LINE_BURST, LINES_PER_S, clock) for allowed in (True, False)
        }
        self._sums: dict[bool, dict[_Kind, _Sum]] = {True: {}, False: {}}
        """Attempts since the last `flush` that were not written as lines, allowed or not; a refusal
        that was written once has a sum of zero.
        """
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
        ask: str = "",
        failed: bool = False,
    ) -> int:
        """Logs one attempt, and returns its number.

        An allowed one is logged when it starts, and again when it ends, with that number as `begun`
        and its duration.
        """
        at, kind = time.time(), _Kind(via, place, port, allowed, why, ask, failed)
        if not allowed:
            self._refuse(kind, EgressAttempt(at, *kind.columns(), address, ask=ask))
            return 0
        # The line of its end is paid for with that of its beginning.
        if begun == _SUMMED or (not begun and not self._lines[True].take(2)):
            self._sum(kind, 0 if begun else 1, sent, received)
            return _SUMMED
        self._last_id += not begun
        number = begun or self._last_id
        took = None if took_s is None else round(took_s, 3)
        line = EgressAttempt(at, *kind.columns(), address, sent, received, took, 1, number)
        self._write(line._replace(failed=failed))
        return number

    def _refuse(self, kind: _Kind, attempt: EgressAttempt) -> None:
        known = self._sums[False]
        is_new = kind not in known and len(known) < _MOST_KINDS[False]
        if is_new and self._lines[False].take():
            self._write(attempt)
            self._sum(kind, 0)
        else:
            self._sum(kind, 1)

    def _sum(self, kind: _Kind, times: int, sent: int = 0, received: int = 0) -> None:
        sums = self._sums[kind.allowed]
        if kind not in sums and len(sums) >= _MOST_KINDS[kind.allowed]:
            kind = _rest_of(kind)
        sums.setdefault(kind, _Sum()).add(times, sent, received)
        if self._timer is None:
            is_flood = self._lines[kind.allowed].level < 2
            delay_s = _FLOOD_GATHER_S if is_flood else _GATHER_S
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.flush)

    def flush(self) -> None:
        """Writes the sums down, the rare attempts first: a flood shall not hide them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        sums, self._sums = self._sums, {True: {}, False: {}}
        at, rest = time.time(), dict[_Kind, _Sum]()
        found = [item for each in sums.values() for item in each.items()]
        for kind, total in sorted(found, key=lambda item: item[1].times):
            if not (total.times or total.sent or total.received):
                continue
            if kind == _rest_of(kind) or not self._lines[kind.allowed].take():
                many = rest.setdefault(_rest_of(kind), _Sum())
                many.add(total.times, total.sent, total.received)
            else:
                self._write(total.render(kind, at))
        for kind, total in rest.items():
            self._write(total.render(kind, at))

    def close(self) -> None:
        self.flush()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _write(self, attempt: EgressAttempt) -> None:
        line = attempt.render()
        if self._lost:
            why = "the journal could not be written"
            lost = EgressAttempt(attempt.at, "", _LOST, 0, allowed=False, why=why, times=self._lost)
            # Perhaps only a part of a line found room: it ends here.
            line = b"\n" + lost.render() + line
        try:
            written = os.write(self._open(len(line)), line)
        except OSError:
            written = 0
        self._size += written
        self._lost = 0 if written == len(line) else self._lost + 1

    def _open(self, more: int) -> int:
        """The file, with room for this many bytes."""
        if self._handle is not None and self._size + more > self._most:
            os.close(self._handle)
            self._handle = None
            is_first = not os.path.lexists(self._directory / FIRST)
            older = FIRST if is_first else OLDER
            os.replace(self._directory / JOURNAL, self._directory / older)
        if self._handle is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            handle = os.open(self._directory / JOURNAL, flags | os.O_CLOEXEC, 0o600)
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                os.close(handle)
                raise OSError("unknown journal format")
            self._handle, self._size = handle, status.st_size
        return self._handle


def _rest_of(kind: _Kind) -> _Kind:
    """What all kinds are summed up as that are too many to be listed."""
    return _Kind(kind.via, _REST, 0, kind.allowed, "too many different ones")
