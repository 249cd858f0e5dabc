"""Ports of the host that a run is going to use, kept from others until it does."""

from __future__ import annotations

import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def hold_ports(ports: Iterable[int]) -> tuple[list[socket.socket], list[int]]:
    """Sockets that hold the ports, and the ports that somebody else has.

    Bound, not listening: a server of the run can take its port, no one gets it by chance.
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
