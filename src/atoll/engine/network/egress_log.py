"""What a capsule tried to reach: the journal that the daemon keeps beside it, as others read it.

An allowed attempt has two lines, one for its start and one for its end, so that nothing is lost if
the daemon dies; a refusal, or several equal attempts, have one line.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from atoll.host.process import pause

JOURNAL = "network.jsonl"
FIRST, OLDER = "network.jsonl.0", "network.jsonl.1"
"""The first file that was full, which is kept, and the last one."""
MOST_BYTES = 5 << 20
"""Of one file; there are at most three."""
_CHUNK_BYTES = 1 << 16
_LOOK_S = 0.2


class EgressAttempt(NamedTuple):
    """A connection attempt of a process in a capsule."""

    at: float
    """Seconds since 1970."""
    via: str
    """`connect`, `http`, `socks`, `caught`, `dns`, `host` or `broker`."""
    place: str
    port: int
    allowed: bool
    why: str
    """The rule that allows it, or the reason for the refusal; of `broker`, the request."""
    address: str | None = None
    """The address of the connection."""
    sent: int = 0
    received: int = 0
    took_s: float | None = None
    """None if it had not ended when this was written."""
    times: int = 1
    """How many equal attempts this entry sums up."""
    id: int = 0
    """The same for the start and the end of one connection; 0 for a refusal."""
    ask: str = ""
    """The rule that would allow what was refused; empty when none would."""
    failed: bool = False
    """Whether it was allowed, but no connection was made; `why` is the reason."""

    def render(self) -> bytes:
        return json.dumps(self._asdict(), separators=(",", ":")).encode() + b"\n"


def parse_attempt(line: bytes) -> EgressAttempt | None:
    """None for a line that was cut short, or that another version wrote."""
    try:
        found = json.loads(line)
        return EgressAttempt(**{key: found[key] for key in EgressAttempt._fields if key in found})
    except (ValueError, TypeError, KeyError):
        return None


def read_attempts(directory: Path) -> list[EgressAttempt]:
    """All that is known, the oldest first, each once: as it ended, or as it began."""
    found: dict[tuple[int, int], EgressAttempt] = {}
    for name in (FIRST, OLDER, JOURNAL):
        handle = _open(directory / name)
        if handle is None:
            continue
        with os.fdopen(handle, "rb") as stream:
            for line in stream:
                attempt = parse_attempt(line)
                if attempt is not None:
                    # A refusal has no number of its own; its place in the row is one.
                    found[attempt.id, 0 if attempt.id else len(found)] = attempt
    return list(found.values())


def read_since(directory: Path, inode: int, offset: int) -> list[EgressAttempt]:
    """What was written after `offset` of the journal that had this inode number, the oldest first,
    beginnings and ends alike; all that is known when that one is no longer there.
    """
    handle = _open(directory / JOURNAL)
    if handle is None:
        return read_attempts(directory)
    with os.fdopen(handle, "rb") as stream:
        if inode and os.fstat(handle).st_ino != inode:
            return read_attempts(directory)
        stream.seek(offset)
        return list(filter(None, map(parse_attempt, stream)))


def follow(
    directory: Path, *, until: Callable[[], bool] = lambda: False
) -> Iterator[EgressAttempt]:
    """New entries, for starts and ends of connections.

    Reads a few times a second, until `until` returns true. If more than one file is filled between
    two reads, entries are missed.
    """
    handle = _open(directory / JOURNAL)
    rest = b""
    if handle is not None:
        os.lseek(handle, 0, os.SEEK_END)
    try:
        while True:
            is_last = until()
            lines, rest = _read_lines(handle, rest)
            yield from filter(None, map(parse_attempt, lines))
            fresh = _open_other(directory / JOURNAL, handle)
            if fresh is not None:
                # The rest of the old file was read just now, or in the moment before it was moved.
                lines, _ = _read_lines(handle, rest)
                yield from filter(None, map(parse_attempt, lines))
                if handle is not None:
                    os.close(handle)
                handle, rest = fresh, b""
            elif is_last:
                return
            else:
                pause(_LOOK_S)
    finally:
        if handle is not None:
            os.close(handle)


def _open(path: Path) -> int | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    return None


def _open_other(path: Path, known: int | None) -> int | None:
    """The file at this place, if it is not the known one."""
    handle = _open(path)
    if handle is None or known is None:
        return handle
    if os.path.samestat(os.fstat(handle), os.fstat(known)):
        os.close(handle)
        return None
    return handle


def _read_lines(handle: int | None, rest: bytes) -> tuple[list[bytes], bytes]:
    if handle is None:
        return [], rest
    parts = [rest]
    while part := os.read(handle, _CHUNK_BYTES):
        parts.append(part)
    *lines, rest = b"".join(parts).split(b"\n")
    return lines, rest
