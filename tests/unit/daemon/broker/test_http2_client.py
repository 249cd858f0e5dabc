"""Connections of HTTP/2 clients that send what no request needs."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, StreamReset, WindowUpdated

from atoll.daemon.broker.http2_client import Http2Connection
from atoll.daemon.broker.open_requests import MOST_HEADER_BYTES, MOST_REQUESTS, OpenRequests
from atoll.daemon.streams import Stream
from atoll.drivers.network.http2_frames import MOST_FRAMES

HOST = "allowed.example"
SETTINGS, EMPTY_DATA = b"\0\0\0\4\0\0\0\0\0", b"\0\0\0\0\0\0\0\0\1"
FLOODS = {
    "ping": b"\0\0\x08\6\0\0\0\0\0" + bytes(8),
    "settings": SETTINGS,
    "priority": b"\0\0\5\2\0\0\0\0\3" + b"\0\0\0\0\1",
    "empty": EMPTY_DATA,
}
HEAD = [(":method", "POST"), (":scheme", "https"), (":path", "/x"), (":authority", HOST)]


class FloodStream(Stream):
    """What a client has sent, all of it at once; the client has gone at its end."""

    def __init__(self, sock, said):
        super().__init__(sock)
        self._said = said
        self.sent = b""

    async def fill(self):
        self.buffer += self._said
        self._said = b""
        return bool(self.buffer)

    async def send(self, data):
        self.sent += data


class Client:
    """What comes of the bytes that a client sends at once. The server answers no request."""

    def __init__(self, *, open_requests=None):
        self.open_requests = open_requests or OpenRequests()
        self.streams = []
        self.neighbour = 0
        self.sent = b""

    async def _serve(self, stream, request):
        self.streams.append((stream, request))
        await asyncio.get_running_loop().create_future()

    async def _refuse(self, _, error):
        raise AssertionError(error)

    async def _be_neighbour(self):
        while True:
            self.neighbour += 1
            await asyncio.sleep(0)

    async def _play(self, said, during):
        left, right = socket.socketpair()
        with left, right:
            stream = FloodStream(left, said)
            connection = Http2Connection(
                stream,
                self._serve,
                self._refuse,
                turn=lambda: asyncio.sleep(0),
                open_requests=self.open_requests,
            )
            tasks = [asyncio.create_task(self._be_neighbour())]
            if during is not None:
                tasks.append(asyncio.create_task(during(self)))
            async with asyncio.timeout(60):
                await connection.run()
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            self.sent = stream.sent

    def play(self, said, *, during=None):
        asyncio.run(self._play(said, during))
        return self


def begun(count=1, *fields):
    """The requests of a client, and the client."""
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    for _ in range(count):
        client.send_headers(client.get_next_available_stream_id(), [*HEAD, *fields])
    return client, client.data_to_send()


@pytest.mark.parametrize("kind", FLOODS)
def test_flood_gives_neighbours_a_turn_and_ends(kind):
    client, said = begun()
    found = Client().play(said + FLOODS[kind] * MOST_FRAMES * 2)
    [ended] = [e for e in client.receive_data(found.sent) if isinstance(e, ConnectionTerminated)]
    assert ended.error_code == ErrorCodes.ENHANCE_YOUR_CALM
    # Not more than 455 frames, of 9 bytes at least, are parsed between two turns.
    assert found.neighbour >= MOST_FRAMES // 455


def test_small_pieces_take_the_room_of_their_bytes():
    async def during(played):
        while not played.streams:  # noqa: ASYNC110 - in the same loop
            await asyncio.sleep(0)
        stream = played.streams[0][0]
        while b"y" not in (data := await stream.read_body()):
            taken.append(data)
        taken.append(data)

    taken: list[bytes] = []
    client, said = begun()
    for _ in range(1000):
        client.send_data(1, b"x")
    client.send_data(1, b"y", pad_length=200)
    found = Client().play(said + client.data_to_send(), during=during)
    assert b"".join(taken) == b"x" * 1000 + b"y"
    assert len(taken) < 100, "each frame is a piece of its own"
    updates = [e for e in client.receive_data(found.sent) if isinstance(e, WindowUpdated)]
    assert updates


def test_requests_of_a_capsule_are_bounded_over_its_connections():
    shared = OpenRequests()
    for _ in range(MOST_REQUESTS - 5):
        assert shared.enter(0)
    client, said = begun(10)
    found = Client(open_requests=shared).play(said)
    resets = [e for e in client.receive_data(found.sent) if isinstance(e, StreamReset)]
    assert [e.error_code for e in resets[:5]] == [ErrorCodes.REFUSED_STREAM] * 5
    assert {e.stream_id for e in resets[:5]} == {11, 13, 15, 17, 19}
    # Those of a connection that has ended are not counted any more.
    assert all(shared.enter(0) for _ in range(5))
    assert not shared.enter(0)


def test_headers_of_a_capsule_are_bounded_however_small_they_are_on_the_wire():
    shared = OpenRequests()
    client, said = begun(60, *[("x-big", "v" * 3900)] * 13)
    assert len(said) < 20_000
    assert shared.enter(MOST_HEADER_BYTES - 100_000)
    found = Client(open_requests=shared).play(said)
    resets = [e for e in client.receive_data(found.sent) if isinstance(e, StreamReset)]
    assert {e.stream_id for e in resets if e.error_code == ErrorCodes.REFUSED_STREAM} == {
        *range(3, 120, 2)
    }


def test_request_does_not_keep_what_it_was_parsed_from():
    async def during(played):
        while not played.streams:  # noqa: ASYNC110 - in the same loop
            await asyncio.sleep(0)
        assert played.streams[0][1].lines == ()
        ended.append(True)

    ended: list[bool] = []
    Client().play(begun()[1] + FLOODS["ping"] * 1000, during=during)
    assert ended
