"""Requests to a fork server or a holder: one message each, with descriptors, answered by one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import socket

from atoll.keeper import wire
from atoll.keeper.wire import WireError, parse_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SOCKET = "keeper"
WRITTEN = "written"
"""A file beside the socket: holds the boot in which the view was last written, or `SYNCED`."""
SYNCED = "synced"
MAX_BYTES = 128 * 1024
_MAX_FDS = 8


def send(sock: socket.socket, value: dict[str, object], fds: tuple[int, ...] = ()) -> None:
    payload = json.dumps(value).encode("ascii")
    if len(payload) > MAX_BYTES:
        raise WireError(f"a request of {len(payload)} bytes is too long")
    try:
        socket.send_fds(sock, [payload], list(fds))
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        with _highest_limit():
            socket.send_fds(sock, [payload], list(fds))


@contextlib.contextmanager
def _highest_limit() -> Iterator[None]:
    """The kernel compares what all processes of a user have in flight with the sender's limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def receive(sock: socket.socket) -> tuple[dict[str, object], list[int]]:
    """The next message and its descriptors. EOFError when there will be none."""
    payload, fds, flags, _ = socket.recv_fds(sock, MAX_BYTES, _MAX_FDS)
    try:
        return _checked(payload, flags), fds
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def _checked(payload: bytes, flags: int) -> dict[str, object]:
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise WireError("a request is too long")
    if not payload:
        raise EOFError
    return parse_json(payload)


def ask(
    sock: socket.socket, value: dict[str, object], fds: tuple[int, ...] = ()
) -> tuple[dict[str, object], list[int]]:
    send(sock, value, fds)
    return receive(sock)


def connect(directory: str | os.PathLike[str], *, timeout_s: float | None = None) -> socket.socket:
    """FileNotFoundError or ConnectionRefusedError: no holder serves this directory."""
    return wire.connect(directory, SOCKET, socket.SOCK_SEQPACKET, timeout_s=timeout_s)
