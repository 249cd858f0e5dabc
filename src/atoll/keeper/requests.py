"""Requests to a fork server or a holder: one message each, with descriptors, answered by one.

A holder that an earlier version started reads them, too: the keys stay.
"""

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
    from collections.abc import Iterator, Mapping
    from typing import NotRequired, TypedDict

    class StartRequest(TypedDict):
        """Start the run in this directory; with the descriptors of its lock, of a pipe, and
        of its private variables if it has any (`private_input.py`)."""

        start: str
        owner: NotRequired[bool]
        starter: NotRequired[int | None]

    class PingRequest(TypedDict):
        ping: bool

    class PinRequest(TypedDict):
        """Stay, also without runs."""

        pin: bool

    class GateRequest(TypedDict):
        """Start no run until this connection is closed."""

        hold: bool

    class EndRequest(TypedDict):
        """End, unless there are runs."""

        end: bool

    class SocketsRequest(TypedDict):
        """New sockets in the capsule's network, each by family and type."""

        sockets: list[list[int]]

    class PortsRequest(TypedDict):
        """The sockets of reserved ports."""

        ports: bool

    class PutRequest(TypedDict):
        """Write a private file (`private_files.py`), with the descriptor of a file that has the
        content. Others than the capsule's user can read a `public` one. The holder removes it at
        the time `until`.
        """

        put: str
        public: bool
        until: NotRequired[float | None]

    class DropRequest(TypedDict):
        """Remove a private file."""

        drop: str

    class ListRequest(TypedDict):
        """The private files, with their deadlines."""

        list: bool

    class ExecuteRequest(TypedDict):
        """Run a command of Atoll's own: an encoded `KeeperSpec`, with its standard streams."""

        execute: dict[str, object]

    class SignalRequest(TypedDict):
        """To that command."""

        signal: int

    HolderRequest = (
        StartRequest | PingRequest | PinRequest | GateRequest | EndRequest
        | SocketsRequest | PortsRequest | ExecuteRequest | SignalRequest
        | PutRequest | DropRequest | ListRequest
    )  # fmt: skip

    class HoldViewRequest(TypedDict):
        """Start the holder of a view: an encoded `HoldRequest`."""

        hold: dict[str, object]

    class WatchRequest(TypedDict):
        """Start a command once this lock is free."""

        watch: str
        argv: list[str]
        env: dict[str, str]

    class FrozenRequest(TypedDict):
        """Continue these processes if the client dies."""

        frozen: str
        pids: list[int]

    ForkServerRequest = StartRequest | HoldViewRequest | WatchRequest | FrozenRequest

SOCKET = "keeper"
WRITTEN = "written"
"""A file beside the socket: holds the boot in which the view was last written, or `SYNCED`."""
SYNCED = "synced"
MAX_BYTES = 128 * 1024
_MAX_FDS = 8


def send(sock: socket.socket, value: Mapping[str, object], fds: tuple[int, ...] = ()) -> None:
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
    sock: socket.socket, value: Mapping[str, object], fds: tuple[int, ...] = ()
) -> tuple[dict[str, object], list[int]]:
    send(sock, value, fds)
    return receive(sock)


def connect(directory: str | os.PathLike[str], *, timeout_s: float | None = None) -> socket.socket:
    """FileNotFoundError or ConnectionRefusedError: no holder serves this directory."""
    return wire.connect(directory, SOCKET, socket.SOCK_SEQPACKET, timeout_s=timeout_s)
