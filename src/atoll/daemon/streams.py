"""A connection that is read piece by piece, with bounds on size and time.

Law: every read gives the other tasks a turn. `sock_recv` returns at once while the kernel has data,
so a peer that sends faster than it is read would otherwise keep the loop to itself.
"""

from __future__ import annotations

import asyncio
import socket

from atoll.daemon.relay import CHUNK_BYTES, reset
from atoll.drivers.network import http1

_DRAIN_S = 2.0
_DRAIN_BYTES = 1 << 20


class Stream:
    """A non-blocking socket, and what was read from it but not yet used."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = bytearray()

    async def fill(self) -> bool:
        """Reads some more; False at the end. OSError when the connection broke."""
        data = await asyncio.get_running_loop().sock_recv(self.sock, CHUNK_BYTES)
        # Stored first: nothing is lost if the task is cancelled while it waits for its turn.
        self.buffer += data
        await asyncio.sleep(0)
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

    async def read_head(self, timeout_s: float) -> bytes:
        """Reads the head of an HTTP/1 message, including the empty line that ends it.

        Raises HttpError when it is too long, EOFError when it is cut short, and TimeoutError.
        """
        searched = 0
        try:
            async with asyncio.timeout(timeout_s):
                while (at := self.buffer.find(http1.END, searched)) < 0:
                    searched = max(0, len(self.buffer) - len(http1.END) + 1)
                    if len(self.buffer) > http1.MAX_HEAD_BYTES:
                        raise http1.HttpError("the head is too long", http1.HEAD_TOO_LONG)
                    if not await self.fill():
                        raise EOFError("the head is cut short")
        except TimeoutError:
            raise TimeoutError("the head took too long") from None
        return self.take(at + len(http1.END))

    def take(self, count: int | None = None) -> bytes:
        """What was read, or the first `count` bytes of it; gone from the buffer."""
        end = len(self.buffer) if count is None else count
        data = bytes(self.buffer[:end])
        del self.buffer[:end]
        return data

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def finish(self, *, drain_bytes: int = _DRAIN_BYTES) -> None:
        """Closes so that the peer can still read what was sent last: closing while the peer sends
        would discard it. At most `drain_bytes` are read before.
        """
        try:
            self.sock.shutdown(socket.SHUT_WR)
            drained = 0
            async with asyncio.timeout(_DRAIN_S):
                while drained < drain_bytes and await self.fill():
                    drained += len(self.take())
        except OSError:
            # Gone already, or still there after all this time.
            pass
        finally:
            self.sock.close()

    def reset(self) -> None:
        reset(self.sock)


async def wait_readable(
    *sockets: socket.socket, timeout_s: float | None = None
) -> socket.socket | None:
    """The first of them that has something, or has ended; None after `timeout_s`."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[socket.socket] = loop.create_future()

    def settle(sock: socket.socket) -> None:
        if not found.done():
            found.set_result(sock)

    for sock in sockets:
        loop.add_reader(sock.fileno(), settle, sock)
    try:
        async with asyncio.timeout(timeout_s):
            return await found
    except TimeoutError:
        return None
    finally:
        for sock in sockets:
            loop.remove_reader(sock.fileno())
