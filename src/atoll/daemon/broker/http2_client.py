"""Clients that speak HTTP/2 to the broker.

Each stream is one exchange. A request is written as an HTTP/1.1 head and parsed by the same strict
parser as any other, so that nothing can be hidden in a header that the two protocols read
differently. Bounded are the streams at once, the size of header lists, what a stream receives
before it is read, what waits to be sent, and the frames that carry nothing. One task reads the
connection and one writes to it; what was read is parsed in small parts, with a turn for the other
tasks after each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RequestReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from atoll.daemon.broker.client_side import ClientGoneError, ResponseHead
from atoll.daemon.broker.http2_head import parse_request
from atoll.daemon.broker.open_requests import OpenRequests
from atoll.daemon.egress.http_requests import IDLE_S
from atoll.daemon.streams import Stream
from atoll.drivers.network import http1
from atoll.drivers.network.http1 import Field, Framing, HttpError, Request
from atoll.drivers.network.http2_frames import FrameBudget, FrameFloodError

_MOST_STREAMS = 64
_WINDOW_BYTES = 128 << 10
"""What a stream may receive before it is read."""
_CONNECTION_WINDOW_BYTES = 192 << 10
"""More than the 64 KiB that a connection begins with."""
_MOST_UNSENT_BYTES = 128 << 10
"""Of all streams together."""
_PARSED_BYTES = 4 << 10
"""At once: some hundreds of the smallest frames."""
_KEPT_S = 120.0
_CHECK_S = 10.0


class Http2Stream:
    """One request and its response."""

    def __init__(self, connection: Http2Connection, number: int, *, is_ended: bool) -> None:
        self._connection = connection
        self._number = number
        self._framing = Framing() if is_ended else Framing(None, chunked=True)
        self._received = bytearray()
        """Not more than the window, in however small pieces it comes."""
        self._arrival = asyncio.Event()
        self._is_ended = is_ended
        """Whether the whole body has arrived."""
        self._awaits_invitation = False
        self._has_ended_response = False

    def set_request(self, request: Request) -> None:
        """Its parsed head."""
        self._framing = request.framing
        wanted = [value.lower() for value in request.values(b"expect")]
        self._awaits_invitation = wanted == [b"100-continue"]

    def feed(self, data: bytes, flow_bytes: int) -> None:
        """A piece of the body, which took `flow_bytes` of the window."""
        # Padding is not kept, and what is kept is acknowledged when it is read.
        self._connection.acknowledge(self._number, flow_bytes - len(data))
        if data:
            self._received += data
            self._arrival.set()

    def feed_end(self) -> None:
        self._is_ended = True
        self._arrival.set()

    @property
    def framing(self) -> Framing:
        return self._framing

    @property
    def has_unread_body(self) -> bool:
        return bool(self._received) or not self._is_ended

    async def invite_body(self) -> None:
        if self._awaits_invitation:
            self._connection.send_headers(self._number, [(b":status", b"100")], is_end=False)
        self._awaits_invitation = False

    async def read_body(self) -> bytes:
        while self.has_unread_body:
            if not self._received:
                self._arrival.clear()
                try:
                    async with asyncio.timeout(IDLE_S):
                        await self._arrival.wait()
                except TimeoutError:
                    raise ClientGoneError("the client broke its request off") from None
                continue
            return self._take_received()
        return b""

    def _take_received(self) -> bytes:
        data = bytes(self._received)
        self._received.clear()
        self._connection.acknowledge(self._number, len(data))
        return data

    async def wait_gone(self) -> None:
        # The task of a stream that is reset is cancelled.
        await asyncio.get_running_loop().create_future()

    async def begin(self, head: ResponseHead) -> None:
        fields = [(b":status", b"%d" % head.status)]
        fields += [(name.lower(), value) for name, value in head.fields]
        if head.length is not None:
            fields.append((b"content-length", b"%d" % head.length))
        self._has_ended_response = not head.has_body
        self._connection.send_headers(self._number, fields, is_end=not head.has_body)

    async def send(self, data: bytes) -> None:
        await self._connection.send_data(self._number, data)

    async def end(self) -> None:
        if not self._has_ended_response:
            self._has_ended_response = True
            self._connection.end_stream(self._number)

    async def switch(self, head: ResponseHead) -> Stream:
        del head
        raise AssertionError("HTTP/2 has no upgrade")

    def abort(self) -> None:
        self._connection.reset_stream(self._number, ErrorCodes.INTERNAL_ERROR)

    def close(self) -> None:
        """The exchange is over; what the client still sends is not wanted."""
        if not self._has_ended_response:
            self.abort()
        elif self.has_unread_body:
            self._connection.reset_stream(self._number, ErrorCodes.NO_ERROR)
        self._take_received()


ServeStream = Callable[[Http2Stream, Request], Coroutine[Any, Any, None]]
RefuseStream = Callable[[Http2Stream, HttpError], Coroutine[Any, Any, None]]


class Http2Connection:
    """A connection after its TLS handshake."""

    def __init__(
        self,
        stream: Stream,
        serve: ServeStream,
        refuse: RefuseStream,
        *,
        turn: Callable[[], Awaitable[None]],
        open_requests: OpenRequests,
    ) -> None:
        """`refuse` answers a request whose head is malformed; `turn` is awaited before each
        request. What these raise, except OSError, is reported to the loop.
        """
        self._stream = stream
        self._serve, self._refuse, self._turn = serve, refuse, turn
        self._open_requests = open_requests
        self._budget = FrameBudget(time.monotonic())
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self._h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: _MOST_STREAMS,
                SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW_BYTES,
                SettingCodes.MAX_HEADER_LIST_SIZE: http1.MAX_HEAD_BYTES,
            },
        )
        self._streams: dict[int, Http2Stream] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._is_dirty = asyncio.Event()
        self._changed = asyncio.Condition()
        """Notified when a window may have opened and when something was sent."""
        self._unsent_bytes = 0
        self._is_sending = False
        self._used_at = time.monotonic()

    async def run(self) -> None:
        """Until the connection ends."""
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW_BYTES)
        self._is_dirty.set()
        parts = [asyncio.create_task(part()) for part in (self._write, self._read, self._age)]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*parts, *self._tasks.values()):
                task.cancel()
            found = await asyncio.gather(*parts, *self._tasks.values(), return_exceptions=True)
        if not self._is_sending:
            # The last frame says why the connection ends.
            with suppress(OSError):
                async with asyncio.timeout(_CHECK_S):
                    await self._stream.send(self._h2.data_to_send())
        for error in found[: len(parts)]:
            if isinstance(error, Exception) and not isinstance(error, OSError | ProtocolError):
                raise error

    async def _age(self) -> None:
        """Returns when the connection was not used for a while."""
        while self._tasks or time.monotonic() < self._used_at + _KEPT_S:  # noqa: ASYNC110 - a time
            await asyncio.sleep(_CHECK_S)
        self._h2.close_connection()

    async def _write(self) -> None:
        while True:
            await self._is_dirty.wait()
            self._is_dirty.clear()
            data, taken = self._h2.data_to_send(), self._unsent_bytes
            self._is_sending = True
            async with asyncio.timeout(IDLE_S):
                await self._stream.send(data)
            self._is_sending = False
            self._unsent_bytes -= taken
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _read(self) -> None:
        while self._stream.buffer or await self._stream.fill():
            data = self._stream.take(min(_PARSED_BYTES, len(self._stream.buffer)))
            try:
                self._budget.feed(data, time.monotonic())
            except FrameFloodError:
                self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
                return
            for event in self._h2.receive_data(data):
                if isinstance(event, ConnectionTerminated):
                    return
                await self._take(event)
            self._is_dirty.set()
            # The answers are sent before more is read, and other connections are served.
            await asyncio.sleep(0)
            async with self._changed:
                self._changed.notify_all()
                # A client that does not read its answers is not read either.
                await self._changed.wait_for(lambda: not self._is_sending)

    async def _take(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            await self._turn()
            self._begin(event)
        elif isinstance(event, DataReceived):
            stream = self._streams.get(event.stream_id)
            if stream is None:
                self.acknowledge(event.stream_id, event.flow_controlled_length)
            else:
                stream.feed(event.data or b"", event.flow_controlled_length)
        elif isinstance(event, StreamEnded):
            if event.stream_id in self._streams:
                self._streams[event.stream_id].feed_end()
        elif isinstance(event, StreamReset) and event.stream_id in self._tasks:
            self._tasks[event.stream_id].cancel()

    def _begin(self, event: RequestReceived) -> None:
        number = event.stream_id
        assert number is not None  # noqa: S101 - every request has one
        headers = [(bytes(name), bytes(value)) for name, value in event.headers or ()]
        header_bytes = sum(len(name) + len(value) for name, value in headers)
        if not self._open_requests.enter(header_bytes):
            # By this code a client knows that it may try again.
            self.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            return
        is_ended = event.stream_ended is not None
        stream = self._streams[number] = Http2Stream(self, number, is_ended=is_ended)
        task = asyncio.create_task(self._run_stream(stream, headers, is_ended=is_ended))
        self._tasks[number] = task
        task.add_done_callback(lambda done: self._forget(number, header_bytes, done))

    async def _run_stream(
        self, stream: Http2Stream, headers: list[Field], *, is_ended: bool
    ) -> None:
        try:
            try:
                request = parse_request(headers, is_ended=is_ended)
            except HttpError as error:
                await self._refuse(stream, error)
                return
            # The request has them all, and may take long.
            headers.clear()
            stream.set_request(request)
            await self._serve(stream, request)
        except OSError:
            # The client has gone, or its response was cut short.
            return
        finally:
            stream.close()

    def _forget(self, number: int, header_bytes: int, task: asyncio.Task[None]) -> None:
        self._open_requests.leave(header_bytes)
        self._streams.pop(number, None)
        self._tasks.pop(number, None)
        self._used_at = time.monotonic()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            context = {"message": "a brokered request failed", "exception": error, "task": task}
            asyncio.get_running_loop().call_exception_handler(context)

    # What a stream sends

    def send_headers(self, number: int, fields: list[Field], *, is_end: bool) -> None:
        with self._sending():
            self._h2.send_headers(number, fields, end_stream=is_end)

    async def send_data(self, number: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            async with self._changed:
                await self._changed.wait_for(lambda: self._room(number) > 0)
                size = min(self._room(number), len(rest))
                with self._sending():
                    self._h2.send_data(number, rest[:size].tobytes())
                self._budget.earn(size)
                self._unsent_bytes += size
            rest = rest[size:]

    def _room(self, number: int) -> int:
        """How many bytes of a stream may be sent now. ClientGoneError when it is closed."""
        if self._unsent_bytes >= _MOST_UNSENT_BYTES:
            return 0
        try:
            window = self._h2.local_flow_control_window(number)
        except ProtocolError:
            raise ClientGoneError from None
        return min(window, self._h2.max_outbound_frame_size)

    def end_stream(self, number: int) -> None:
        with self._sending():
            self._h2.end_stream(number)

    def reset_stream(self, number: int, code: ErrorCodes) -> None:
        with suppress(ClientGoneError), self._sending():
            self._h2.reset_stream(number, code)

    def acknowledge(self, number: int, size: int) -> None:
        """That much was read, so that the client may send more."""
        if size:
            with suppress(ClientGoneError), self._sending():
                self._h2.acknowledge_received_data(size, number)

    @contextmanager
    def _sending(self) -> Iterator[None]:
        try:
            yield
        except ProtocolError as error:
            raise ClientGoneError(str(error)) from None
        self._is_dirty.set()
