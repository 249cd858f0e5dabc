"""Ports that are held, not guessed."""

from __future__ import annotations

import errno
import resource
import socket


class HeldPort:
    """A port that is ours on every address, IPv4 and IPv6, until `close`.

    The sockets are exclusive and never listen: nobody can take the port, nobody can connect.
    """

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


def find_hold(port: int) -> HeldPort | None:
    """Takes `port`, or returns None when anybody has it on any address."""
    sockets: list[socket.socket] = []
    for kind in (socket.AF_INET, socket.AF_INET6):
        try:
            sock = socket.socket(kind, socket.SOCK_STREAM)
        except OSError:
            # A host without IPv6 has nobody listening there either.
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
    """Lets this process have as many descriptors as it may: each connection takes two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
