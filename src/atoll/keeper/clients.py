"""The connected clients, their roles, and their pending output.

No client can harm another or the run: a wrong frame costs only its sender, what waits for a
client is bounded, and only the foreground client may slow the command down.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections import deque
from functools import partial

from atoll.keeper import wire
from atoll.keeper.loop import READ, WRITE, Loop
from atoll.keeper.terminal_queries import strip_queries
from atoll.keeper.wire import Decoder, MessageKind, WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from atoll.keeper.peer_check import Origin

HIGH_WATER_BYTES = 1024 * 1024
LOW_WATER_BYTES = 512 * 1024
ATTACH_LIMIT_BYTES = 4 * 1024 * 1024
REPLAY_BYTES = 64 * 1024
MOST_CLIENTS = 64

_WATCHERS = ("foreground", "attach")
_CHUNK_BYTES = 64 * 1024
_REPLAY_PIECE_BYTES = 4096


class Client:
    """One connection. `role` is None until its hello."""

    __slots__ = ("decoder", "is_closed", "is_deaf", "is_held", "out", "progress", "role", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.role: str | None = None
        self.decoder = Decoder()
        self.out = bytearray()
        self.progress = time.monotonic()
        """When it last read something."""
        self.is_deaf = False
        """It reads no more; what it sent before must still be processed."""
        self.is_held = False
        """Its input is not read for now."""
        self.is_closed = False


class Replay:
    """The last output, for a client that comes late.

    Output to a terminal is without queries: the terminal of that client must not answer them.
    """

    __slots__ = ("_is_terminal", "_pieces", "_size")

    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self._pieces: deque[tuple[MessageKind, bytearray]] = deque()
        self._size = 0

    def add(self, kind: MessageKind, data: bytes) -> None:
        data = data[-REPLAY_BYTES:]
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last[0] == kind and len(last[1]) < _REPLAY_PIECE_BYTES:
            last[1].extend(data)
        else:
            self._pieces.append((kind, bytearray(data)))
        self._size += len(data)
        while self._size > REPLAY_BYTES:
            oldest = self._pieces[0][1]
            excess = min(self._size - REPLAY_BYTES, len(oldest))
            del oldest[:excess]
            self._size -= excess
            if not oldest:
                self._pieces.popleft()

    def pieces(self) -> list[tuple[MessageKind, bytes]]:
        if not self._is_terminal or not self._pieces:
            return [(kind, bytes(data)) for kind, data in self._pieces]
        # A query may be in two pieces. All output of a terminal is of one kind.
        output = strip_queries(b"".join(data for _, data in self._pieces))
        return [(self._pieces[0][0], output)] if output else []


class Clients:
    """All connections of one run.

    `on_frame` gets every frame and raises WireError if it does not like one; `on_gone` is called
    when a client has left, after everything that it sent.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        on_frame: Callable[[Client, MessageKind, bytes], None],
        on_gone: Callable[[Client], None],
        origin: Origin,
        *,
        is_terminal: bool,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._on_frame = on_frame
        self._on_gone = on_gone
        self._origin = origin
        self._clients: list[Client] = []
        self._is_holding = False
        # Selectors cannot watch for nothing but a hang-up; an epoll inside the selector can.
        self._hangups = select.epoll()
        self._replay = Replay(is_terminal=is_terminal)
        self.foreground: Client | None = None
        loop.watch(self._hangups.fileno(), READ, self._on_hangup)
        loop.watch(listener.fileno(), READ, self._accept)

    @property
    def is_crowded(self) -> bool:
        """The foreground client has to take more before it can be given more."""
        return self.foreground is not None and len(self.foreground.out) >= HIGH_WATER_BYTES

    @property
    def is_roomy(self) -> bool:
        return self.foreground is None or len(self.foreground.out) <= LOW_WATER_BYTES

    def pending(self) -> list[Client]:
        """The clients with pending output."""
        return [client for client in self._clients if client.out]

    def output(self, kind: MessageKind, data: bytes) -> None:
        """Send a piece of output to all watching clients, and keep it for later ones."""
        self._replay.add(kind, data)
        frame = wire.encode(kind, data)
        for client in list(self._clients):
            if client.role in _WATCHERS:
                self._queue(client, frame)

    def announce(self, frame: bytes) -> None:
        for client in list(self._clients):
            self._queue(client, frame)
            if client.out:
                self._flush(client)

    def send(self, client: Client, frame: bytes) -> None:
        self._queue(client, frame)

    def admit(self, client: Client, role: str) -> None:
        """Give the client its role and, if it watches, the output so far."""
        client.role = role
        if role == "foreground":
            self.foreground = client
        if role != "control":
            for kind, data in self._replay.pieces():
                self._queue(client, wire.encode(kind, data))
            if self._is_holding:
                self._hold(client)

    def hold_stdin(self, *, is_full: bool) -> None:
        """While the command's stdin is full, read nothing from clients that might send more."""
        if is_full == self._is_holding:
            return
        self._is_holding = is_full
        for client in self._clients:
            if is_full and client.role in _WATCHERS:
                self._hold(client)
            elif not is_full:
                self._let_speak(client)

    def _hold(self, client: Client) -> None:
        client.is_held = True
        with contextlib.suppress(OSError):  # what a user may watch by epoll can be used up
            self._hangups.register(client.sock, 0)
        self._watch(client)

    def _let_speak(self, client: Client) -> None:
        if client.is_held:
            client.is_held = False
            self._forget_hangup(client)
            self._watch(client)

    def _forget_hangup(self, client: Client) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._hangups.unregister(client.sock)

    def drop(self, client: Client) -> None:
        if client.is_closed:
            return
        client.is_closed = True
        if client.is_held:
            self._forget_hangup(client)
        self._loop.forget(client.sock.fileno())
        client.sock.close()
        client.out.clear()
        self._clients.remove(client)
        if client is self.foreground:
            self.foreground = None
        self._on_gone(client)

    def close(self) -> None:
        """Close all connections; clients that had sent something unread get an end of file, not a
        reset.
        """
        self._loop.forget(self._listener.fileno())
        self._listener.close()
        for client in list(self._clients):
            try:
                while client.sock.recv(_CHUNK_BYTES):
                    pass
            except OSError:
                pass
            self.drop(client)

    def _watch(self, client: Client) -> None:
        events = (0 if client.is_held else READ) | (WRITE if client.out else 0)
        self._loop.watch(client.sock.fileno(), events, partial(self._serve, client))

    def _accept(self, _events: int) -> None:
        sock = self._origin.accept(self._listener)
        if sock is None:
            return
        if len(self._clients) >= MOST_CLIENTS:
            sock.close()
            return
        client = Client(sock)
        self._clients.append(client)
        self._watch(client)
        self._read(client)  # who connects says hello at once

    def _on_hangup(self, _events: int) -> None:
        gone = {fd for fd, _ in self._hangups.poll(0)}
        for client in [client for client in self._clients if client.sock.fileno() in gone]:
            self.drop(client)

    def _queue(self, client: Client, frame: bytes) -> None:
        if client.is_closed or client.is_deaf:
            return
        if client is not self.foreground and len(client.out) + len(frame) > ATTACH_LIMIT_BYTES:
            self.drop(client)
            return
        if not client.out:
            client.progress = time.monotonic()
        client.out += frame
        self._watch(client)

    def _serve(self, client: Client, ready: int) -> None:
        if ready & READ and not client.is_closed:
            self._read(client)
        if ready & WRITE and not client.is_closed:
            self._flush(client)

    def _read(self, client: Client) -> None:
        try:
            data = client.sock.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop(client)
            return
        try:
            for kind, payload in client.decoder.feed(data):
                self._on_frame(client, kind, payload)
                if client.is_closed:
                    return
        except WireError as error:
            self._refuse(client, str(error))

    def _refuse(self, client: Client, message: str) -> None:
        """Say why, if the socket takes it at once, and let the client go."""
        try:
            if not client.out:
                client.sock.send(wire.encode_json(MessageKind.ERROR, {"message": message}))
        except OSError:
            pass
        self.drop(client)

    def _flush(self, client: Client) -> None:
        try:
            with memoryview(client.out) as view:
                sent = client.sock.send(view[:_CHUNK_BYTES])
        except BlockingIOError:
            return
        except OSError:
            client.is_deaf = True
            client.out.clear()
        else:
            del client.out[:sent]
            client.progress = time.monotonic()
        if client.is_deaf and client.is_held:
            self.drop(client)
        else:
            self._watch(client)


class Starter:
    """The process that starts a foreground run, until it has connected as its client.

    One that was killed before will never connect.
    """

    __slots__ = ("_handle", "_loop", "is_gone")

    def __init__(self, pid: int, loop: Loop) -> None:
        self._loop = loop
        self._handle: int | None = None
        self.is_gone = False
        try:
            self._handle = os.pidfd_open(pid)
        except ProcessLookupError:
            self.is_gone = True
        except OSError:  # no pidfd here (old kernel, filter): the time limit has to do
            return
        else:
            loop.watch(self._handle, READ, self._end)

    def forget(self) -> None:
        """It has connected."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._loop.forget(handle)
            os.close(handle)

    def _end(self, _events: int) -> None:
        self.forget()
        self.is_gone = True
