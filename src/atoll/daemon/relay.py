"""Bytes between two sockets, both ways, at the pace of the slower side.

Law: what was read is written before more is read, so one connection never holds more than one
chunk; a side that is full is waited for and never asked again and again. Small chunks are copied;
a direction in which chunks come full is spliced by the kernel through a pipe.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from atoll.daemon.splice_pipes import SIZE_BYTES, Pipe, Pipes

CHUNK_BYTES = 1 << 16
_HEAVY = 2
"""After this many full chunks in a row a direction switches to a pipe."""
_LIGHT = 32
"""After this many small ones in a row it returns the pipe."""
_TURN_BYTES = 1 << 19
"""After this many bytes other connections are served."""
_SEND_BYTES = 1 << 17
"""How far the sender may be ahead in a busy direction: more data would have left the processor's
cache when it is read."""
_RESET = struct.pack("ii", 1, 0)
_WAIT = (BlockingIOError, InterruptedError)
_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK

PIPES = Pipes()
"""The bound on pipes is the user's, so all connections of the process share it."""


class Counts:
    """Bytes sent to the right side, and received from it."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0


class Tap:
    """Passes copied bytes to a callback, as long as one is set."""

    __slots__ = ("on_data",)

    def __init__(self) -> None:
        self.on_data: Callable[[bytes], None] | None = None


_NO_TAP = Tap()
_NOTHING = memoryview(b"")


async def relay(
    left: socket.socket,
    right: socket.socket,
    *,
    first: bytes = b"",
    idle_s: float | None = None,
    counts: Counts | None = None,
) -> None:
    """Relays both ways until both sides have ended; half-closes and resets are passed on.

    Both sockets must be non-blocking; both are closed, also when this is cancelled. `first` is sent
    to `right` before all else. With `idle_s` a connection without traffic for that long is closed.
    """
    _send_at_once(left, right)
    there, back = _Direction(left, right, first), _Direction(right, left)
    try:
        with suppress(TimeoutError):
            await _until_over((there, back), idle_s)
    finally:
        for direction in (there, back):
            direction.release()
        if there.is_broken or back.is_broken:
            reset(left, right)
        left.close()
        right.close()
        if counts is not None:
            counts.sent += there.count
            counts.received += back.count


async def relay_one_way(
    source: socket.socket,
    target: socket.socket,
    *,
    first: bytes = b"",
    tap: Tap | None = None,
    passes_end: bool = True,
) -> int:
    """Relays one way, `first` before all else, until `source` has ended; then, with `passes_end`,
    `target` is half-closed.

    Closes nothing. Returns the number of bytes. ConnectionError when either side broke.
    """
    direction = _Direction(source, target, first, tap, passes_end=passes_end)
    try:
        await _until_over((direction,), None)
    finally:
        direction.release()
    if direction.is_broken or direction.is_target_broken:
        raise ConnectionResetError(errno.ECONNRESET, "the connection broke")
    return direction.count


def _send_at_once(*sockets: socket.socket) -> None:
    """Disables Nagle's algorithm: what was received in one piece is sent in one piece."""
    for sock in sockets:
        # A socket of another kind never delays; one that broke reports it when it is read.
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def reset(*sockets: socket.socket) -> None:
    """Closes with RST, so that the peers do not take it for the end of a message."""
    for sock in sockets:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.close()


async def _until_over(directions: tuple[_Direction, ...], idle_s: float | None) -> None:
    """TimeoutError when nothing moves for `idle_s`."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def end_if_over() -> None:
        is_over = all(direction.is_over for direction in directions) or any(
            direction.is_broken for direction in directions
        )
        if is_over and not over.done():
            over.set_result(None)

    for direction in directions:
        direction.start(end_if_over)
    if idle_s is None:
        return await over
    moved = -1
    while moved != (now := sum(direction.turns for direction in directions)):
        moved = now
        # Checked once per period: resetting a timer at each byte would cost more.
        await asyncio.wait({over}, timeout=idle_s)
        if over.done():
            return None
    raise TimeoutError


class _Direction:
    """One direction. `is_broken`: its source was lost; `is_deaf`: its target takes no more."""

    __slots__ = (
        "_fds",
        "_full",
        "_is_waiting",
        "_loop",
        "_on_end",
        "_passes_end",
        "_pending",
        "_pipe",
        "_piped",
        "_small",
        "_source",
        "_tap",
        "_target",
        "count",
        "is_broken",
        "is_ended",
        "is_over",
        "is_target_broken",
        "turns",
    )

    def __init__(
        self,
        source: socket.socket,
        target: socket.socket,
        first: bytes = b"",
        tap: Tap | None = None,
        *,
        passes_end: bool = True,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._tap = tap or _NO_TAP
        self._passes_end = passes_end
        self._source, self._target = source, target
        self._fds = (source.fileno(), target.fileno())
        self._pending = memoryview(first)
        self._pipe: Pipe | None = None
        self._piped = self._full = self._small = 0
        self._is_waiting = False
        self.count, self.turns = len(first), 0
        self.is_ended = self.is_over = self.is_broken = self.is_target_broken = False

    def start(self, on_end: Callable[[], None]) -> None:
        """`on_end` is called when it is over."""
        self._on_end = on_end
        self._loop.add_reader(self._fds[0], self._turn)
        if self._pending:
            self._write()

    def release(self) -> None:
        """Before the sockets are closed: nothing may call back, no pipe may stay."""
        self._loop.remove_reader(self._fds[0])
        if self._is_waiting:
            self._loop.remove_writer(self._fds[1])
        self._give_pipe_back()

    def _turn(self) -> None:
        """The source has something, or has ended."""
        self.turns += 1
        left = _TURN_BYTES
        while left > 0:
            size = self._read()
            # After less than a chunk the source is empty; the loop reports new data.
            if size is None or not self._write() or size < CHUNK_BYTES:
                return
            left -= size

    def _read(self) -> int | None:
        """How much was read, 0 for the end; None when nothing was."""
        try:
            # Tapped bytes have to be copied; the pipe is empty here.
            is_heard = self._pipe is None or self._tap.on_data is not None
            size = self._copy() if is_heard else self._fill_pipe()
        except _WAIT:
            return None
        except OSError:
            self.is_broken = True
            self._end()
            return None
        self.is_ended = size == 0
        self.count += size
        return size

    def _copy(self) -> int:
        data = self._source.recv(CHUNK_BYTES)
        self._pending = memoryview(data)
        size = len(data)
        self._full = self._full + 1 if size == CHUNK_BYTES else 0
        if self._tap.on_data is not None:
            self._tap.on_data(data)
        return size

    def _fill_pipe(self) -> int:
        assert self._pipe is not None  # noqa: S101 - asked by the only caller
        size = os.splice(self._fds[0], self._pipe.writer, SIZE_BYTES, flags=_FLAGS)
        self._piped += size
        self._small = self._small + 1 if size < CHUNK_BYTES else 0
        return size

    def _write(self) -> bool:
        """Whether all is written, so that more may be read. Otherwise it continues when there is
        room.
        """
        try:
            while self._piped and self._pipe is not None:
                self._piped -= os.splice(self._pipe.reader, self._fds[1], self._piped, flags=_FLAGS)
            if self._pending:
                while self._pending:
                    self._pending = self._pending[self._target.send(self._pending) :]
                # An empty view would keep the chunk in memory while the connection is idle.
                self._pending = _NOTHING
        except _WAIT:
            self._wait_for_room()
            return False
        except OSError:
            # The target reads no more; what it still sends is relayed.
            self.is_target_broken = True
            self._end()
            return False
        if self.is_ended:
            self._pass_end_on()
            return False
        self._change_gear()
        return True

    def _change_gear(self) -> None:
        if self._pipe is None and self._full >= _HEAVY:
            self._full = 0
            self._pipe = PIPES.find()
            if self._pipe is not None:
                with suppress(OSError):
                    self._target.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        elif self._small >= _LIGHT:
            self._small = 0
            self._give_pipe_back()

    def _wait_for_room(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._loop.remove_reader(self._fds[0])
            self._loop.add_writer(self._fds[1], self._go_on)

    def _go_on(self) -> None:
        """The target has room again. As long as it is the slower side, only it is waited for."""
        self.turns += 1
        left = _TURN_BYTES
        while left > 0:
            if not self._write():
                return
            size = self._read()
            if size is None:
                break
            left -= size
        else:
            return
        if not self.is_over:
            self._is_waiting = False
            self._loop.remove_writer(self._fds[1])
            self._loop.add_reader(self._fds[0], self._turn)

    def _pass_end_on(self) -> None:
        if self._passes_end:
            with suppress(OSError):
                self._target.shutdown(socket.SHUT_WR)
        self._end()

    def _end(self) -> None:
        self.is_over = True
        self._loop.remove_reader(self._fds[0])
        if self._is_waiting:
            self._is_waiting = False
            self._loop.remove_writer(self._fds[1])
        self._on_end()

    def _give_pipe_back(self) -> None:
        if self._pipe is not None:
            PIPES.take_back(self._pipe, is_empty=not self._piped)
            self._pipe, self._piped = None, 0
