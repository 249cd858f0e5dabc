"""Listening sockets of a network namespace, and the processes that hold ports of the host."""

from __future__ import annotations

import os
import pwd
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import NamedTuple

from atoll.host.procfs import processes
from atoll.keeper import netlink

_LISTEN, LISTEN_STATE = b"0A", 10
_DIAG = struct.Struct("=BBBBI")
_ID_BYTES = 48
BY_FAMILY = 20
"""The kind of a `sock_diag` request, and of its answers."""
_ANY = {"0.0.0.0", "::"}  # noqa: S104 - compared with, never bound
_MAPPED = bytes(10) + b"\xff\xff"
_SOCKSTAT_BYTES = 1 << 12
_IN_USE = b" inuse "
MAX_LISTENERS = 4096
"""The maximum number of sockets read from one listing."""
MAX_TABLE_BYTES = 4 << 20
"""How much of one table in /proc is read; it lists all connections as well."""
MAX_ADDRESSES = 4
"""Addresses of one port that are tried for a connection."""
_LOOPBACK4, _LOOPBACK6 = "127.0.0.1", "::1"


class Listening(NamedTuple):
    """An address and a port on which something accepts connections."""

    address: str
    port: int


class Listing(NamedTuple):
    """The listeners in one network namespace, possibly incomplete."""

    places: frozenset[Listening] = frozenset()
    is_complete: bool = True


class SocketEntry(NamedTuple):
    """One line of the kernel's table that is in state LISTEN."""

    address: str
    port: int
    uid: int
    inode: int


class Occupant(NamedTuple):
    """A process that listens on a host port. For other users' processes only the user is known."""

    user: str
    pid: int | None = None
    command: str | None = None

    def render(self) -> str:
        if self.pid is None:
            return f"a process of user `{self.user}`"
        return f"`{self.command}` (process {self.pid}, user `{self.user}`)"


def parse_table(text: bytes) -> Iterator[SocketEntry]:
    """The listeners in the text of /proc/net/tcp or tcp6; other lines are skipped."""
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            place, _, port = fields[1].partition(b":")
            yield SocketEntry(parse_address(place), int(port, 16), int(fields[7]), int(fields[9]))


def parse_address(text: bytes) -> str:
    """The kernel prints each 32-bit word in native byte order."""
    packed = bytes.fromhex(text.decode("ascii"))
    if sys.byteorder == "little":
        words = (packed[start : start + 4] for start in range(0, len(packed), 4))
        packed = b"".join(word[::-1] for word in words)
    return _plain(packed)


def _plain(packed: bytes) -> str:
    if len(packed) == 4:
        return socket.inet_ntop(socket.AF_INET, packed)
    if packed.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET, packed[len(_MAPPED) :])
    return socket.inet_ntop(socket.AF_INET6, packed)


def find_listening(pid: int) -> Listing | None:
    """What accepts connections in the network of process `pid`; None when the process is gone."""
    tables = _tables(f"/proc/{pid}/net", MAX_TABLE_BYTES)
    if tables is None:
        return None
    entries = list(islice(_entries(tables), MAX_LISTENERS + 1))
    is_cut = len(entries) > MAX_LISTENERS or any(len(t) == MAX_TABLE_BYTES for t in tables)
    places = frozenset(Listening(e.address, e.port) for e in entries[:MAX_LISTENERS])
    return Listing(places, is_complete=not is_cut)


class SocketCount:
    """How many TCP sockets are in use in the network of a process. A listener that appears or goes
    changes it, and to read it costs far less than a listing.
    """

    def __init__(self, pid: int) -> None:
        self._tables: list[int] = []
        for name in ("sockstat", "sockstat6"):
            with suppress(OSError):
                handle = os.open(f"/proc/{pid}/net/{name}", os.O_RDONLY | os.O_CLOEXEC)
                self._tables.append(handle)

    def read(self) -> tuple[bytes, ...]:
        """Empty if the kernel does not report it."""
        try:
            texts = [os.pread(handle, _SOCKSTAT_BYTES, 0) for handle in self._tables]
        except OSError:
            return ()
        # `TCP: inuse 5 …` comes first; the rest is counted for the whole machine.
        return tuple(
            word for text in texts for word in text.partition(_IN_USE)[2].split(None, 1)[:1]
        )

    def close(self) -> None:
        for handle in self._tables:
            os.close(handle)
        self._tables.clear()


class ListenerQuery:
    """Asks the kernel for the listening sockets of the network in which a `NETLINK_SOCK_DIAG`
    socket was made. The kernel reads only its table of listeners, where /proc walks over all
    connections.

    The answer comes in parts, so that a caller can yield between them. After an incomplete answer
    the rest of it is still queued: close the socket.
    """

    def __init__(self, sock: socket.socket, limit: int = MAX_LISTENERS) -> None:
        self._sock = sock
        self._left = limit
        self._places: set[Listening] = set()
        self._families = [(socket.AF_INET6, 16), (socket.AF_INET, 4)]
        self._address_bytes = 0
        self._is_complete = True

    def read_part(self) -> Listing | None:
        """Reads one part; returns the whole listing after the last one.

        Raises OSError when the kernel does not support the question.
        """
        if not self._address_bytes:
            self._send_request()
        is_last = self._take_part(self._sock.recv(1 << 16))
        if is_last:
            self._address_bytes = 0
        if not self._is_complete or (is_last and not self._families):
            return Listing(frozenset(self._places), self._is_complete)
        return None

    def _send_request(self) -> None:
        family, self._address_bytes = self._families.pop()
        request = diag_request(family, 1 << LISTEN_STATE, b"")
        self._sock.send(netlink.frame(BY_FAMILY, netlink.DUMP, 1, request))

    def _take_part(self, answer: bytes) -> bool:
        """Returns whether it was the last part for the family."""
        for kind, payload in netlink.frames(answer):
            if kind == netlink.DONE:
                return True
            if not self._left:
                self._is_complete = False
                return True
            self._left -= 1
            (port,) = struct.unpack_from(">H", payload, 4)
            self._places.add(Listening(_plain(payload[8 : 8 + self._address_bytes]), port))
        return False


def diag_request(family: int, states: int, identity: bytes) -> bytes:
    """A `sock_diag` request for TCP sockets: their states as bits, and what is known of them."""
    head = _DIAG.pack(family, socket.IPPROTO_TCP, 0, 0, states)
    return head + identity.ljust(_ID_BYTES, b"\0")


def own_listeners() -> frozenset[Listening]:
    """All listeners in this process's network namespace."""
    tables = _tables("/proc/self/net") or []
    return frozenset(Listening(entry.address, entry.port) for entry in _entries(tables))


def _entries(tables: Iterable[bytes]) -> Iterator[SocketEntry]:
    return chain.from_iterable(parse_table(table) for table in tables)


def _tables(directory: str, limit: int = -1) -> list[bytes] | None:
    """The texts of both tables, of each at most `limit` bytes; None when the process is gone."""
    found: list[bytes] = []
    for name in ("tcp", "tcp6"):
        try:
            with open(f"{directory}/{name}", "rb") as stream:
                found.append(stream.read(limit))
        except FileNotFoundError:
            if name == "tcp":
                return None
            # A kernel without IPv6.
        except OSError:
            # The process exited between opening and reading.
            return None
    return found


def dial_order(listening: Iterable[str]) -> list[str]:
    """The addresses to try for a port that listens on these, in order.

    Whether a listener on `::` also accepts IPv4 cannot be seen: both are tried.
    """
    addresses = set(listening)
    tried = []
    if addresses & {*_ANY, _LOOPBACK4}:
        tried.append(_LOOPBACK4)
    if addresses & {"::", _LOOPBACK6}:
        tried.append(_LOOPBACK6)
    return tried or sorted(addresses)[:MAX_ADDRESSES]


def find_occupants(port: int) -> list[Occupant]:
    """The processes that listen on a port of the host, on any address."""
    tables = _tables("/proc/self/net") or []
    entries = [entry for entry in _entries(tables) if entry.port == port]
    if not entries:
        return []
    owners = _owners({entry.inode for entry in entries})
    table = processes() if owners else {}
    found = []
    for entry in entries:
        pid = owners.get(entry.inode)
        process = table.get(pid) if pid is not None else None
        command = process.command[:100] if process is not None else None
        found.append(Occupant(_user(entry.uid), pid if process is not None else None, command))
    return sorted(set(found), key=lambda occupant: occupant.pid or 0)


def _owners(inodes: set[int]) -> dict[int, int]:
    """Sockets by inode → a process that has them open, of those that can be examined."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        for target in _open_files(name):
            if target in wanted:
                found.setdefault(wanted[target], int(name))
    return found


def _open_files(pid: str) -> Iterator[str]:
    directory = f"/proc/{pid}/fd"
    try:
        names = os.listdir(directory)
    except OSError:
        # Exited, or another user's.
        return
    for name in names:
        try:
            yield os.readlink(f"{directory}/{name}")
        except OSError:
            continue


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
