"""The sockets that a holder keeps bound inside for the daemon, borrowed until they are returned.

See `atoll.keeper.reserved_ports`. A holder of an earlier version has none.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import ExitStack
from typing import NamedTuple

from atoll.drivers.contracts import EgressSockets
from atoll.keeper import requests, wire
from atoll.keeper.networks import CAUGHT_PORT, NAMES_PORT, PROXY_PORT

_ANSWER_S = 5.0
_STREAM, _DATAGRAM = int(socket.SOCK_STREAM), int(socket.SOCK_DGRAM)


class _Lease(NamedTuple):
    connection: socket.socket
    sockets: list[socket.socket]


async def borrow(directory: str, opened: ExitStack, *, backlog: int) -> EgressSockets | None:
    """Listening and non-blocking, until `opened` is closed. None when the holder keeps none.

    OSError when the holder does not answer in time, or a socket cannot listen.
    """
    lease = await asyncio.to_thread(_borrow, directory)
    if lease is None:
        return None
    # The connection is entered first, and so ends last: then the holder closes the ports.
    for sock in (lease.connection, *lease.sockets):
        opened.enter_context(sock)
    found: dict[tuple[int, int], list[socket.socket]] = {}
    for sock in lease.sockets:
        sock.setblocking(False)  # noqa: FBT003
        if sock.type == socket.SOCK_STREAM:
            sock.listen(backlog)
        found.setdefault((int(sock.type), sock.getsockname()[1]), []).append(sock)
    return EgressSockets(
        proxy=found[_STREAM, PROXY_PORT][0],
        transparent=tuple(found[_STREAM, CAUGHT_PORT]),
        dns=tuple(found[_DATAGRAM, NAMES_PORT]),
        dns_streams=tuple(found[_STREAM, NAMES_PORT]),
    )


def _borrow(directory: str) -> _Lease | None:
    try:
        connection = requests.connect(directory, timeout_s=_ANSWER_S)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    try:
        _, fds = requests.ask(connection, {"ports": True})
    except (EOFError, ConnectionError):
        # It hung up on a request that it does not know.
        connection.close()
        return None
    except wire.WireError as error:
        connection.close()
        raise OSError(errno.EPROTO, f"the holder sent no sockets: {error}") from error
    except BaseException:
        connection.close()
        raise
    return _Lease(connection, [socket.socket(fileno=fd) for fd in fds])
