"""The ports inside a capsule's network that belong to the daemon.

The holder binds them before anything else runs in the network, and keeps them bound until the view
ends: no process inside can take one while there is no daemon. The daemon gets the sockets on a
separate connection. When that ends, for any reason, the ports are closed: connections and datagrams
are refused again, and the ports stay bound.
"""

from __future__ import annotations

import os
import socket

from atoll.keeper import calls
from atoll.keeper.networks import CAUGHT_PORT, IPV6, LOOPBACK_ADDRESSES, NAMES_PORT, PROXY_PORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_V4, _V6 = int(socket.AF_INET), int(socket.AF_INET6)
_STREAM, _DATAGRAM = int(socket.SOCK_STREAM), int(socket.SOCK_DGRAM)
PORTS = (
    (_V4, _STREAM, PROXY_PORT),
    (_V4, _STREAM, CAUGHT_PORT),
    (_V6, _STREAM, CAUGHT_PORT),
    (_V4, _DATAGRAM, NAMES_PORT),
    (_V6, _DATAGRAM, NAMES_PORT),
    (_V4, _STREAM, NAMES_PORT),
    (_V6, _STREAM, NAMES_PORT),
)
"""Family, type and port, each on the loopback address of its family."""
_UNUSED = ((_V6, _STREAM, PROXY_PORT),)
"""Bound so that no process can use it."""


class ReservedPorts:
    """The reserved ports in the network of the process that creates it."""

    def __init__(self) -> None:
        """OSError when a port is in use."""
        has_v6 = os.path.exists(IPV6)
        self.sockets = [_bind(*port) for port in PORTS if has_v6 or port[0] == _V4]
        self._unused = [_bind(*port) for port in _UNUSED if has_v6]
        self._tenant: int | None = None

    def open_for(self, client: int) -> None:
        """Opens the ports for a client, which is identified by its descriptor."""
        self._tenant = client
        for sock in self.sockets:
            if sock.type == socket.SOCK_DGRAM:
                calls.disconnect(sock.fileno())
            else:
                # So that it can listen beside the connections of a former tenant. Only while it
                # listens: until then it would let others bind the port, too.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.listen(0)

    def end(self, client: int) -> None:
        """Closes the ports, unless they were opened for another client meanwhile."""
        if client != self._tenant:
            return
        self._tenant = None
        for sock in self.sockets:
            _close(sock)


def _bind(family: int, kind: int, port: int) -> socket.socket:
    # Without SO_REUSEADDR: with it, others could bind the same port.
    sock = socket.socket(family, kind)
    try:
        if family == _V6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((LOOPBACK_ADDRESSES[family], port))
        _close(sock)
    except OSError:
        sock.close()
        raise
    return sock


def _close(sock: socket.socket) -> None:
    if sock.type == socket.SOCK_DGRAM:
        # Connected to itself: the kernel refuses all other senders.
        sock.connect(sock.getsockname())
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        # On a socket that does not listen, this would mark the connections of later listeners.
        sock.shutdown(socket.SHUT_RD)


def hold_ports(ports: Iterable[int]) -> tuple[list[socket.socket], list[int]]:
    """Reserve ports of the host for a run: sockets that hold them, and the ports that are taken.

    The sockets are bound and do not listen: a server of the run can take its port, and no other
    process gets it by chance.
    """
    placeholders: list[socket.socket] = []
    taken: list[int] = []
    for port in ports:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))
        except OSError:
            sock.close()
            taken.append(port)
        else:
            placeholders.append(sock)
    return placeholders, taken
