"""A connection that is read piece by piece, with bounds on size and time."""

from __future__ import annotations

import asyncio
import socket
import struct

_CHUNK_BYTES = 1 << 16
_DRAIN_S = 2.0
_DRAIN_BYTES = 1 << 20


class Stream:
    """A non-blocking socket, and what was read from it but not yet used."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = bytearray()

    async def fill(self) -> bool:
        """Reads some more; False at the end. OSError when the connection broke."""
        data = await asyncio.get_running_loop().sock_recv(self.sock, _CHUNK_BYTES)
        self.buffer += data
        return bool(data)

    async def find_start(self, timeout_s: float) -> bool:
        """Whether something has come within that time, and not the end."""
        if self.buffer:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                return await self.fill()
        except TimeoutError:
            return False

    async def read_past(self, mark: bytes, *, most: int, timeout_s: float) -> bytes:
        """Everything up to and with a mark. ValueError when it does not come in time, or within
        `most` bytes, or at all.
        """
        searched = 0
        try:
            async with asyncio.timeout(timeout_s):
                while (at := self.buffer.find(mark, searched)) < 0:
                    searched = max(0, len(self.buffer) - len(mark) + 1)
                    if len(self.buffer) > most or not await self.fill():
                        raise ValueError("is too long or cut short")
        except TimeoutError:
            raise ValueError("took too long") from None
        return self.take(at + len(mark))

    def take(self, count: int | None = None) -> bytes:
        """What was read, or the first `count` bytes of it; gone from the buffer."""
        end = len(self.buffer) if count is None else count
        data = bytes(self.buffer[:end])
        del self.buffer[:end]
        return data

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def finish(self) -> None:
        """Closes so that the other side can still read what was sent last: one that is closed
        while it sends would throw that away.
        """
        try:
            self.sock.shutdown(socket.SHUT_WR)
            drained = 0
            async with asyncio.timeout(_DRAIN_S):
                while drained < _DRAIN_BYTES and await self.fill():
                    drained += len(self.take())
        except OSError:
            # Gone already, or still there after all this time.
            pass
        finally:
            self.sock.close()

    def reset(self) -> None:
        """The other side is told that this was no ordinary end."""
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            # Closed already.
            pass
        finally:
            self.sock.close()
