"""Who listens: in a network, as /proc shows it to whoever can name a process there; and who it is
that holds a port of the host.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from atoll.host.procfs import processes

_LISTEN, _LISTEN_STATE = b"0A", 10
_NETLINK, _DIAG = struct.Struct("=IHHII"), struct.Struct("=BBBBI")
_BY_FAMILY, _DUMP = 20, 0x301
_ERROR, _DONE = 2, 3
_ANY = {"0.0.0.0", "::"}  # noqa: S104 - compared with, never bound
_LOOPBACK4, _LOOPBACK6 = "127.0.0.1", "::1"


class Listening(NamedTuple):
    """An address and a port on which something accepts connections."""

    address: str
    port: int


class Entry(NamedTuple):
    """One line of the kernel's table that is in state LISTEN."""

    address: str
    port: int
    uid: int
    inode: int


class Occupant(NamedTuple):
    """Who listens on a port of the host. Of another user's process only the user can be told."""

    user: str
    pid: int | None = None
    command: str | None = None

    def render(self) -> str:
        if self.pid is None:
            return f"a process of user `{self.user}`"
        return f"`{self.command}` (process {self.pid}, user `{self.user}`)"


def parse_table(text: bytes) -> Iterator[Entry]:
    """The listeners in the text of /proc/net/tcp or tcp6; lines of another shape are passed by."""
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            place, _, port = fields[1].partition(b":")
            yield Entry(parse_address(place), int(port, 16), int(fields[7]), int(fields[9]))


def parse_address(text: bytes) -> str:
    """The kernel prints each 32-bit word in the machine's own order."""
    packed = bytes.fromhex(text.decode("ascii"))
    if sys.byteorder == "little":
        words = (packed[start : start + 4] for start in range(0, len(packed), 4))
        packed = b"".join(word[::-1] for word in words)
    return _plain(packed)


def _plain(packed: bytes) -> str:
    address = ipaddress.ip_address(packed)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def find_listening(pid: int) -> frozenset[Listening] | None:
    """Everything that accepts connections in the network of process `pid`; None when it is gone."""
    entries = _entries(f"/proc/{pid}/net")
    if entries is None:
        return None
    return frozenset(Listening(entry.address, entry.port) for entry in entries)


def ask_listening(sock: socket.socket) -> frozenset[Listening]:
    """Everything that accepts connections in the network that a socket of `NETLINK_SOCK_DIAG` was
    made in. The kernel then looks at nothing else, where /proc has it walk over all connections.

    OSError when the kernel does not answer so.
    """
    found: set[Listening] = set()
    for family, size in ((socket.AF_INET, 4), (socket.AF_INET6, 16)):
        request = _DIAG.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << _LISTEN_STATE) + bytes(48)
        head = _NETLINK.pack(_NETLINK.size + len(request), _BY_FAMILY, _DUMP, 1, 0)
        sock.send(head + request)
        while not _take_answer(sock.recv(1 << 16), size, found):
            continue
    return frozenset(found)


def _take_answer(answer: bytes, size: int, found: set[Listening]) -> bool:
    """Adds what it tells; whether it was the last part."""
    at = 0
    while at < len(answer):
        length, kind, *_ = _NETLINK.unpack_from(answer, at)
        if kind == _ERROR:
            code = struct.unpack_from("=i", answer, at + _NETLINK.size)[0]
            raise OSError(-code, os.strerror(-code))
        if kind == _DONE:
            return True
        (port,) = struct.unpack_from(">H", answer, at + _NETLINK.size + 4)
        place = at + _NETLINK.size + 8
        found.add(Listening(_plain(answer[place : place + size]), port))
        at += (length + 3) & ~3
    return False


def here() -> frozenset[Listening]:
    """The same for our own network."""
    return find_listening(os.getpid()) or frozenset()


def _entries(directory: str) -> list[Entry] | None:
    found: list[Entry] = []
    for name in ("tcp", "tcp6"):
        try:
            with open(f"{directory}/{name}", "rb") as stream:
                found += parse_table(stream.read())
        except FileNotFoundError:
            if name == "tcp":
                return None
            # A kernel without IPv6.
        except OSError:
            # The process went away between opening and reading.
            return None
    return found


def dialled(places: Iterable[Listening], port: int) -> list[str]:
    """Under which addresses of its own network a port is to be tried, in this order.

    Whether a listener on `::` also takes IPv4 cannot be seen: both are tried.
    """
    addresses = {place.address for place in places if place.port == port}
    tried = []
    if addresses & {*_ANY, _LOOPBACK4}:
        tried.append(_LOOPBACK4)
    if addresses & {"::", _LOOPBACK6}:
        tried.append(_LOOPBACK6)
    return tried or sorted(addresses)


def find_occupants(port: int) -> list[Occupant]:
    """Who listens on a port of the host, on any address."""
    entries = [entry for entry in _entries("/proc/self/net") or () if entry.port == port]
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
    """Sockets by inode → a process that has them open, of those that can be looked at."""
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
        # Gone, or another user's.
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
