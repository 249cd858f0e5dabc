"""Synthetic addresses for names inside one capsule: a connection to one shows the name.

Programs may keep an address longer than its time to live. Therefore an address keeps its meaning
when the daemon is restarted: each assignment is appended to a file in the capsule's directory
before the address is returned. Addresses are taken from a ring, so that one is reused for another
name only after all others; until then an old one is invalid.

The file is not synced: a power failure also ends the programs that use the addresses.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import stat
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atoll.host import files
from atoll.keeper.handles import Opened
from atoll.keeper.networks import STAND_INS
from atoll.model.egress import Address
from atoll.model.errors import StateError

FILE = "stand-ins"
RANGE = ipaddress.IPv4Network(STAND_INS)
MOST = 4096
"""Names that have an address at the same time."""
FIRST = 256
"""Lower addresses have another meaning: the name server."""
START = FIRST + 4096
"""Where a new table begins: versions without a file used the addresses below."""
LAST = RANGE.num_addresses - 2
_LINE = re.compile(rb"([0-9]{1,6})(?: ([a-z0-9_.-]{1,253}))?")
_MOST_LINE_BYTES = 262


class SyntheticAddresses:
    """A name keeps its address as long as it is in the table. When that is full, the least recently
    used name is evicted, unless it has an open connection.
    """

    def __init__(self, directory: Path, *, most: int = MOST, last: int = LAST) -> None:
        """Reads the file in `directory`. OSError when it cannot be read or is damaged."""
        self._path = directory / FILE
        self._most = most
        self._last = last
        self._addresses: OrderedDict[str, ipaddress.IPv4Address] = OrderedDict()
        self._names: dict[Address, str] = {}
        self._used: Counter[str] = Counter()
        self._next = START
        self._lines = 0
        self._load()

    def knows(self, name: str) -> bool:
        return name in self._addresses

    def address_of(self, name: str) -> ipaddress.IPv4Address | None:
        """None when all addresses are in use, or the assignment cannot be saved."""
        known = self._addresses.get(name)
        if known is None:
            known = self._assign(name)
            if known is None:
                return None
        self._addresses.move_to_end(name)
        return known

    def find_name(self, address: Address) -> str | None:
        return self._names.get(address)

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """While this lasts, the name keeps its address."""
        self._used[name] += 1
        try:
            yield
        finally:
            self._used[name] -= 1
            if not self._used[name]:
                del self._used[name]

    def _assign(self, name: str) -> ipaddress.IPv4Address | None:
        if not self._has_room():
            return None
        offset = self._take_offset()
        try:
            if self._lines >= 4 * self._most:
                self._compact()
            self._append(b"%d %s\n" % (offset, name.encode()))
        except OSError:
            # It may have been written in part; the offset is not used again before its turn.
            return None
        self._enter(offset, name)
        return RANGE[offset]

    def _has_room(self) -> bool:
        if len(self._addresses) < self._most:
            return True
        oldest = next((name for name in self._addresses if not self._used[name]), None)
        if oldest is None:
            return False
        del self._names[self._addresses.pop(oldest)]
        return True

    def _take_offset(self) -> int:
        """The next one in the ring that no name has."""
        while RANGE[self._next] in self._names:
            self._advance(self._next)
        offset = self._next
        self._advance(offset)
        return offset

    def _advance(self, used: int) -> None:
        self._next = used + 1 if used < self._last else FIRST

    def _enter(self, offset: int, name: str) -> None:
        address = RANGE[offset]
        before = self._names.pop(address, None)
        if before is not None:
            del self._addresses[before]
        if name in self._addresses:
            del self._names[self._addresses.pop(name)]
        self._addresses[name] = address
        self._names[address] = name

    def _append(self, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        with Opened(os.open(self._path, flags | os.O_CLOEXEC, 0o600)) as handle:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise OSError(errno.EPERM, "unknown file format")
            if os.write(handle, line) != len(line):
                os.ftruncate(handle, status.st_size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._lines += 1

    def _compact(self) -> None:
        """Rewrites the file: the names in the table, and the position in the ring."""
        rows = [
            b"%d %s\n" % (int(address) - int(RANGE[0]), name.encode())
            for name, address in self._addresses.items()
        ]
        rows.append(b"%d\n" % self._next)
        files.write_atomic(self._path, b"".join(rows), durable=False)
        self._lines = len(rows)

    def _load(self) -> None:
        limit = _MOST_LINE_BYTES * (5 * self._most + 2)
        try:
            content = files.read_regular(self._path, limit_bytes=limit) or b""
        except StateError as error:
            raise OSError(errno.EIO, str(error)) from error
        *lines, torn = content.split(b"\n")
        for line in lines:
            self._replay(line)
        self._lines = len(lines)
        if torn:
            # Its address was never returned: the answer follows the complete line.
            self._compact()

    def _replay(self, line: bytes) -> None:
        found = _LINE.fullmatch(line)
        offset = int(found[1]) if found else -1
        if found is None or not FIRST <= offset <= self._last:
            raise OSError(errno.EIO, f"`{self._path}` is damaged")
        if found[2] is None:
            self._next = offset
            return
        if self._has_room():
            self._enter(offset, found[2].decode())
        self._advance(offset)
