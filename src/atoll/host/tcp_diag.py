"""TCP sockets of this network namespace: listeners, and the users of connections.

A TCP connection carries no credentials (`SO_PEERCRED` exists for Unix sockets only), but on one
machine both of its ends are sockets of the same kernel, and `sock_diag` reports the user of each.
It needs no privilege. Where the kernel was built without it, /proc/net/tcp has the same columns.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import NamedTuple

from atoll.host.listening_sockets import (
    BY_FAMILY,
    LISTEN_STATE,
    diag_request,
    family_of,
    parse_address,
)
from atoll.keeper import netlink

_NETLINK_SOCK_DIAG = 4
_PORTS = struct.Struct(">HH")
_IDS = struct.Struct("=III")
_MESSAGE = struct.Struct("=BBBB")
_TAIL = struct.Struct("=IIIII")
_PLACE_BYTES = 16
_ANY_STATE = 0xFFFF_FFFF
_NO_COOKIE = 0xFFFF_FFFF
_ANSWER_BYTES = 1 << 16
_LOCAL = ("127.0.0.1", "::1", "0.0.0.0", "::")  # noqa: S104 - compared with, never bound
_FAMILIES = {socket.AF_INET: "tcp", socket.AF_INET6: "tcp6"}


class TcpSocket(NamedTuple):
    """One TCP socket. `inode` is 0 when no process has it open any more."""

    state: int
    address: str
    port: int
    peer_address: str
    peer_port: int
    uid: int
    inode: int


class Diag:
    """A netlink socket for requests about the network namespace in which it was created."""

    def __init__(self) -> None:
        """OSError when the kernel has no `sock_diag`."""
        self._sock = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG
        )
        # The kernel answers within the call that asks, so nothing is ever waited for.
        self._sock.settimeout(0)
        self._number = 0

    def close(self) -> None:
        self._sock.close()

    def find_connection(
        self, local: tuple[str, int], peer: tuple[str, int], family: int
    ) -> TcpSocket | None:
        """The socket whose own end is `local`; None when there is none. OSError on failure."""
        entry = self._find(local, peer, family)
        # Without a connection the kernel may answer with a listener on that port.
        is_meant = entry is not None and (entry.peer_address, entry.peer_port) == peer
        return entry if is_meant else None

    def find_listener(self, address: str, port: int, family: int) -> TcpSocket | None:
        """The socket that accepts connections to an address. OSError on failure."""
        unspecified = "::" if family == socket.AF_INET6 else "0.0.0.0"  # noqa: S104 - never bound
        entry = self._find((address, port), (unspecified, 0), family)
        return entry if entry is not None and entry.state == LISTEN_STATE else None

    def _find(self, local: tuple[str, int], peer: tuple[str, int], family: int) -> TcpSocket | None:
        kind = socket.AddressFamily(family)
        places = b"".join(
            socket.inet_pton(kind, one[0]).ljust(_PLACE_BYTES, b"\0") for one in (local, peer)
        )
        identity = _PORTS.pack(local[1], peer[1]) + places + _IDS.pack(0, _NO_COOKIE, _NO_COOKIE)
        payload = diag_request(family, _ANY_STATE, identity)
        try:
            return next(iter(self._ask(payload)), None)
        except FileNotFoundError:
            return None

    def listeners(self, port: int) -> list[TcpSocket]:
        """Every socket that listens on a port, on any address. OSError on failure."""
        found: list[TcpSocket] = []
        for family in _FAMILIES:
            payload = diag_request(family, 1 << LISTEN_STATE, _PORTS.pack(port, 0))
            found += [entry for entry in self._ask(payload, netlink.DUMP) if entry.port == port]
        return found

    def _ask(self, payload: bytes, flags: int = 0) -> list[TcpSocket]:
        self._number += 1
        self._sock.send(netlink.frame(BY_FAMILY, flags, self._number, payload))
        found: list[TcpSocket] = []
        while not self._take(self._sock.recv(_ANSWER_BYTES), found) and flags == netlink.DUMP:
            continue
        return found

    def _take(self, answer: bytes, found: list[TcpSocket]) -> bool:
        """Adds the entries of one datagram; returns whether it was the last one."""
        for kind, payload in netlink.frames(answer, self._number):
            if kind == netlink.DONE:
                return True
            if kind == BY_FAMILY:
                found.append(_parse_message(payload))
        return False


def _parse_message(data: bytes) -> TcpSocket:
    family, state, _, _ = _MESSAGE.unpack_from(data)
    port, peer_port = _PORTS.unpack_from(data, _MESSAGE.size)
    at = _MESSAGE.size + _PORTS.size
    size = 4 if family == socket.AF_INET else _PLACE_BYTES
    place = socket.inet_ntop(family, data[at : at + size])
    at += _PLACE_BYTES
    peer = socket.inet_ntop(family, data[at : at + size])
    *_, uid, inode = _TAIL.unpack_from(data, at + _PLACE_BYTES + _IDS.size)
    return TcpSocket(state, place, port, peer, peer_port, uid, inode)


def _read_tables() -> Iterator[TcpSocket]:
    """The same from /proc, for kernels without `sock_diag`; much slower with many connections."""
    for name in _FAMILIES.values():
        with suppress(FileNotFoundError), open(f"/proc/self/net/{name}", "rb") as stream:
            for fields in map(bytes.split, stream.readlines()[1:]):
                (place, port), (peer, peer_port) = (
                    (parse_address(text), int(number, 16))
                    for text, number in (fields[1].split(b":"), fields[2].split(b":"))
                )
                state, uid, inode = int(fields[3], 16), int(fields[7]), int(fields[9])
                yield TcpSocket(state, place, port, peer, peer_port, uid, inode)


def find_listeners(port: int) -> list[TcpSocket]:
    """Every socket of this network that listens on a port, on any address."""
    try:
        with closing(Diag()) as diag:
            return diag.listeners(port)
    except OSError:
        return [
            entry for entry in _read_tables() if entry.state == LISTEN_STATE and entry.port == port
        ]


def find_local(port: int) -> list[TcpSocket]:
    """Those of the listeners that may be what a connection to `localhost` reaches."""
    return [one for one in find_listeners(port) if one.address in _LOCAL]


def is_free_of_others(port: int) -> bool:
    """Whether no user but the calling one, or root, listens on a port of `localhost`."""
    return all(one.uid in (os.geteuid(), 0) for one in find_local(port))


def is_own_listener(address: str, port: int) -> bool:
    """Whether a connection to an address of `localhost` cannot reach another user than the calling
    one, or root. Much cheaper than `is_free_of_others`.
    """
    try:
        with closing(Diag()) as diag:
            found = diag.find_listener(address, port, family_of(address))
    except OSError:
        found = None
    if found is None:
        # No listener, or a kernel that does not report it.
        return is_free_of_others(port)
    return found.uid in (os.geteuid(), 0)


class PeerUsers:
    """Determines which user has connected to a socket of this process."""

    def __init__(self) -> None:
        self._diag: Diag | None = None
        with suppress(OSError):
            self._diag = Diag()
        if self._diag is not None and not self._is_usable():
            # `sock_diag` without its module for TCP answers as if there were no connection.
            self._diag.close()
            self._diag = None

    def close(self) -> None:
        if self._diag is not None:
            self._diag.close()

    def uid_of_peer(self, sock: socket.socket) -> int | None:
        """The user who made the other end of an accepted connection.

        None when that cannot be known, in particular when the other end was closed already: older
        kernels report root as the owner of such a socket.
        """
        try:
            peer, local = sock.getpeername()[:2], sock.getsockname()[:2]
            entry = self._find(peer, local, sock.family)
            # After a reset the same pair of ports could be a new connection of another user.
            is_intact = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        except OSError:
            return None
        if entry is None or entry.state == LISTEN_STATE or not is_intact:
            return None
        return entry.uid if entry.uid != 0 or entry.inode != 0 else None

    def _find(self, local: tuple[str, int], peer: tuple[str, int], family: int) -> TcpSocket | None:
        if self._diag is not None:
            return self._diag.find_connection(local, peer, family)
        for entry in _read_tables():
            if (entry.address, entry.port, entry.peer_address, entry.peer_port) == (*local, *peer):
                return entry
        return None

    def _is_usable(self) -> bool:
        """Asks about a connection of this process's own, whose user is known."""
        try:
            with (
                socket.create_server(("127.0.0.1", 0), backlog=1) as server,
                socket.create_connection(server.getsockname(), timeout=1),
            ):
                accepted, _ = server.accept()
                with accepted:
                    return self.uid_of_peer(accepted) is not None
        except OSError:
            return False
