"""Reserves ports."""

from __future__ import annotations

import errno
import resource
import socket


class HeldPort:
    """A port that is reserved on every address, IPv4 and IPv6, until `close`.

    The sockets are exclusive and never listen: no process can bind the port or connect to it.
    """

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


def find_hold(port: int) -> HeldPort | None:
    """Reserves `port`; returns None if it is in use on any address."""
    sockets: list[socket.socket] = []
    for kind in (socket.AF_INET, socket.AF_INET6):
        try:
            sock = socket.socket(kind, socket.SOCK_STREAM)
        except OSError:
            # Without IPv6 there are no listeners on it either.
            continue
        sockets.append(sock)
        if kind is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            sock.bind(("", port))
        except OSError as error:
            HeldPort(sockets).close()
            if error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
                return None
            raise
    return HeldPort(sockets)


def allow_many() -> None:
    """Raises the limit of open descriptors: each connection takes two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
