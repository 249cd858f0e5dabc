"""What keeper and clients say to each other, and how they find each other.

A frame is one byte of kind, four bytes of length (big-endian) and the payload; the payload of
`STDIN`, `OUT` and `ERR` is raw bytes, `STDIN_EOF` has none, all others carry one JSON object.
The stream ends with `ENDED`; if it ends without, the keeper has died or given this client up,
and `status.json` has the outcome as soon as the lock on the run is free.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import socket
import struct

from atoll.keeper.handles import Opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_PAYLOAD_BYTES = 1024 * 1024
CONTROL = "control"

_HEAD = struct.Struct("!BI")


class MessageKind(enum.IntEnum):
    # client to keeper
    HELLO = 1  # {"role": "foreground" | "attach" | "control", "rows": int, "cols": int}
    STDIN = 2
    STDIN_EOF = 3
    RESIZE = 4  # {"rows": int, "cols": int}
    SIGNAL = 5  # {"signal": int}
    STOP = 6  # {"grace_s": float}; without it the run's own
    HOLD = 7  # {"stays": bool}; if not, until the client leaves. Again: is it still held?
    RESUME = 8  # {}; ends what stays
    # keeper to client
    OUT = 16
    ERR = 17
    ENDED = 18  # the final status
    ERROR = 19  # {"message": str}
    HELD = 20  # {"how": str, "reason": str, "processes": int}; answers HOLD and RESUME


CGROUP = "cgroup"
PTRACE = "ptrace"
NOTHING = "nothing"
UNVERIFIED = "unverified"
ENDING = "ending"
"""The run is being ended: ask again, or wait for its end."""


class FreezeReply:
    """How the processes of a run are frozen, or why they are not."""

    __slots__ = ("how", "processes", "reason")

    def __init__(self, how: str, reason: str = "", processes: int = 0) -> None:
        self.how = how
        self.reason = reason
        self.processes = processes

    def render(self) -> dict[str, object]:
        """The payload of a `HELD` frame."""
        return {"how": self.how, "reason": self.reason, "processes": self.processes}


class WireError(Exception):
    """The peer violates the protocol."""


def encode(kind: MessageKind, payload: bytes = b"") -> bytes:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise WireError(f"a frame of {len(payload)} bytes is too long")
    return _HEAD.pack(kind, len(payload)) + payload


def encode_json(kind: MessageKind, value: Mapping[str, object]) -> bytes:
    return encode(kind, json.dumps(value).encode("ascii"))


def parse_json(payload: bytes) -> dict[str, object]:
    """The object in a frame; WireError if it is anything else."""
    try:
        value: object = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise WireError("a frame does not hold JSON") from error
    if not isinstance(value, dict):
        raise WireError("a frame does not hold a JSON object")
    return value


def whole_number(raw: dict[str, object], key: str) -> int:
    value = raw.get(key)
    if type(value) is not int:
        raise WireError(f"`{key}` is not a whole number")
    return value


def seconds(raw: dict[str, object], key: str, default: float) -> float:
    value = raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise WireError(f"`{key}` is not a number of seconds")
    return value


class Decoder:
    """Assembles frames from the pieces that a socket returns."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[MessageKind, bytes]]:
        """The frames that `data` completes; WireError on an unknown kind or a frame too long."""
        buffer = self._buffer
        buffer += data
        frames: list[tuple[MessageKind, bytes]] = []
        while len(buffer) >= _HEAD.size:
            number, length = _HEAD.unpack_from(buffer)
            try:
                kind = MessageKind(number)
            except ValueError as error:
                raise WireError(f"unknown kind of frame {number}") from error
            if length > MAX_PAYLOAD_BYTES:
                raise WireError(f"a frame of {length} bytes is too long")
            end = _HEAD.size + length
            if len(buffer) < end:
                break
            frames.append((kind, bytes(buffer[_HEAD.size : end])))
            del buffer[:end]
        return frames


@contextlib.contextmanager
def _socket_in(
    place: str | os.PathLike[str], name: str, kind: socket.SocketKind
) -> Iterator[tuple[socket.socket, str]]:
    """A socket, which an error closes, and the address of `name` in `place`.

    An address holds 107 bytes at most and a directory's path may be longer: it is named by a
    descriptor, which is closed after use.
    """
    with Opened(os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
        sock = socket.socket(socket.AF_UNIX, kind)
        try:
            yield sock, f"/proc/self/fd/{directory}/{name}"
        except OSError:
            sock.close()
            raise


def connect(
    place: str | os.PathLike[str],
    name: str = CONTROL,
    kind: socket.SocketKind = socket.SOCK_STREAM,
    *,
    timeout_s: float | None = None,
) -> socket.socket:
    """A connection to a socket in a directory: of the keeper, if `place` is that of a run.

    FileNotFoundError or ConnectionRefusedError: no process listens there (not yet, or no more).
    TimeoutError: one does, and does not accept. Other OSError as the system gives them.
    """
    with _socket_in(place, name, kind) as (sock, path):
        sock.settimeout(timeout_s)
        sock.connect(path)
    return sock


def listen(
    place: str | os.PathLike[str],
    name: str = CONTROL,
    kind: socket.SocketKind = socket.SOCK_STREAM,
) -> socket.socket:
    """The keeper's end, non-blocking; only the owner of the run can reach it."""
    with _socket_in(place, name, kind) as (sock, path):
        remove(place, name)
        sock.bind(path)
        os.chmod(path, 0o600)
        sock.listen(64)
        sock.settimeout(0)
    return sock


def remove(place: str | os.PathLike[str], name: str = CONTROL) -> None:
    """Take a socket's name away; nothing happens if there is none."""
    try:
        os.unlink(os.path.join(place, name))
    except OSError:
        return
