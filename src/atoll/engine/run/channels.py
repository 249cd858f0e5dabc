"""A connection to the keeper of a run."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import Self

from atoll.keeper import wire
from atoll.model.errors import DriverError
from atoll.model.state import Run

_CHUNK_BYTES = 1 << 16


class Channel:
    """A connection to the keeper of a run: sends input and signals, receives output and the end.

    Sending never blocks: what the keeper does not accept yet stays pending, so that the sender can
    continue reading. Input to a run that has ended is discarded.
    """

    def __init__(self, sock: socket.socket, run: Run, *, hello: dict[str, object]) -> None:
        self._socket = sock
        self._decoder = wire.Decoder()
        self._pending = bytearray()
        self.run = run
        self.ended = False
        self._send(wire.encode_json(wire.MessageKind.HELLO, hello))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def congested(self) -> bool:
        """Whether something is pending: then select for writing, `flush`, and send no more."""
        return bool(self._pending)

    def _send(self, frame: bytes) -> None:
        self._pending += frame
        self.flush()

    def flush(self) -> None:
        try:
            while self._pending:
                del self._pending[: self._socket.send(self._pending, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            self._pending.clear()

    def drain(self, *, timeout_s: float) -> None:
        """Waits until nothing is pending. Raises DriverError when the keeper takes nothing."""
        while self.congested:
            if not select.select([], [self], [], timeout_s)[1]:
                raise DriverError(f"the keeper of `{self.run.label}` does not answer")
            self.flush()

    def write(self, data: bytes) -> None:
        for at in range(0, len(data), _CHUNK_BYTES):
            self._send(wire.encode(wire.MessageKind.STDIN, data[at : at + _CHUNK_BYTES]))

    def close_input(self) -> None:
        self._send(wire.encode(wire.MessageKind.STDIN_EOF))

    def resize(self, rows: int, cols: int) -> None:
        self._send(wire.encode_json(wire.MessageKind.RESIZE, {"rows": rows, "cols": cols}))

    def signal(self, number: int) -> None:
        self._send(wire.encode_json(wire.MessageKind.SIGNAL, {"signal": number}))

    def stop(self, *, grace_s: float | None = None) -> None:
        self._send(
            wire.encode_json(wire.MessageKind.STOP, {} if grace_s is None else {"grace_s": grace_s})
        )

    def receive(self) -> Iterator[tuple[str, bytes]]:
        """What has arrived, as (`out` or `err`, data). Sets `ended` at the end of the stream."""
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self.ended = True
            return
        for kind, payload in self._decoder.feed(data):
            if kind is wire.MessageKind.OUT:
                yield "out", payload
            elif kind is wire.MessageKind.ERR:
                yield "err", payload
            elif kind is wire.MessageKind.ENDED:
                self.ended = True

    def exchange(self, *, timeout_s: float | None = None) -> Iterator[tuple[str, bytes]]:
        """Flushes what is pending and yields the output until the run has ended.

        Raises DriverError when the keeper sends nothing for `timeout_s`.
        """
        while not self.ended:
            wanted = [self] if self.congested else []
            readable, writable, _ = select.select([self], wanted, [], timeout_s)
            if not readable and not writable:
                raise DriverError(f"the keeper of `{self.run.label}` does not answer")
            if writable:
                self.flush()
            if readable:
                yield from self.receive()
