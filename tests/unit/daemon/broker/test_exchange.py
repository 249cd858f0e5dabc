"""Exchanges over real sockets, with the real meter: each request that was sent is counted."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import StreamClosedError

from atoll.daemon.broker import metering
from atoll.daemon.broker.admission import Permit, parse_client_request
from atoll.daemon.broker.exchange import Exchange
from atoll.daemon.broker.http1_client import Http1Client, read_request
from atoll.daemon.broker.http2_client import Http2Connection
from atoll.daemon.broker.metering import Meter
from atoll.daemon.broker.open_requests import OpenRequests
from atoll.daemon.broker.substitution import Substituted
from atoll.daemon.broker.upstream import ServerConnection, ServerPlace
from atoll.daemon.egress.egress_log_writer import Journal
from atoll.daemon.streams import Stream
from atoll.model.agent import AgentTask
from atoll.model.secret import BrokerScope
from worlds import World

HOST = "api.example.org"
BODY = b'{"model": "m-1", "x": "' + b"y" * 400_000 + b'"}'
PATH = "/v1/chat/completions"


def pair():
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
    return Stream(ours), Stream(theirs)


class Place:
    """A broker's end of one host, whose server is a socket of the test's."""

    host = HOST

    def __init__(self, meter, directory):
        self.meter, self.journal = meter, Journal(directory)
        self.servers = asyncio.Queue[Stream]()
        self.is_reachable = True
        self.sockets = []

    async def admit(self, request):
        del request
        return Permit((), BrokerScope(()), model=True, grants=())

    def is_granted(self, permit):
        del permit
        return True

    async def substitute(self, permit, request):
        del permit
        return Substituted(request.fields, request.query, ())

    async def connect(self, permit):
        del permit
        if not self.is_reachable:
            await asyncio.get_running_loop().create_future()
        ours, theirs = pair()
        self.sockets += [ours.sock, theirs.sock]
        self.servers.put_nowait(theirs)
        return ServerConnection(ServerPlace(HOST, 443, True, HOST), ours, None)

    def reserve(self, size):
        del size
        return True

    async def serve(self, client, request):
        await Exchange(self, client, parse_client_request(request)).run()

    async def server(self):
        """The server, once it has read a whole request."""
        server = await self.servers.get()
        await server.read_head(10)
        while len(server.buffer) < len(BODY):
            assert await server.fill()
        return server


class Http1:
    def __init__(self, place):
        inside, self.client = pair()
        self.task = asyncio.create_task(self.serve(place, inside))

    async def serve(self, place, stream):
        request = await read_request(stream, first_s=10, head_s=10)
        assert request is not None
        try:
            await place.serve(Http1Client(stream, request), request)
        finally:
            stream.sock.close()

    async def ask(self, *fields):
        head = [f"POST {PATH} HTTP/1.1", f"Host: {HOST}", f"Content-Length: {len(BODY)}", *fields]
        await self.client.send("\r\n".join([*head, "", ""]).encode() + BODY)

    async def until_answer(self):
        await self.client.read_head(10)

    async def leave(self):
        self.client.sock.close()
        await asyncio.gather(self.task, return_exceptions=True)


class Http2:
    def __init__(self, place):
        self.inside, self.client = pair()
        self.place, self.is_served = place, asyncio.Event()
        connection = Http2Connection(
            self.inside,
            self.serve,
            self.refuse,
            turn=lambda: asyncio.sleep(0),
            open_requests=OpenRequests(),
        )
        self.h2 = H2Connection(H2Configuration(client_side=True))
        self.h2.initiate_connection()
        self.task = asyncio.create_task(connection.run())

    async def serve(self, stream, request):
        try:
            await self.place.serve(stream, request)
        finally:
            self.is_served.set()

    async def refuse(self, stream, error):
        raise AssertionError((stream, error))

    async def ask(self, *fields):
        more = [tuple(field.lower().split(": ")) for field in fields]
        head = {":method": "POST", ":path": PATH, ":scheme": "https", ":authority": HOST}
        self.h2.send_headers(1, [*head.items(), *more])
        rest = BODY
        while rest:
            size = min(len(rest), self.h2.local_flow_control_window(1), 16384)
            if size:
                self.h2.send_data(1, rest[:size])
                rest = rest[size:]
            await self.flush()
            if not size:
                await self.read()
        self.h2.end_stream(1)
        await self.flush()

    async def flush(self):
        await self.client.send(self.h2.data_to_send())

    async def read(self):
        assert await self.client.fill()
        return [type(event).__name__ for event in self.h2.receive_data(self.client.take())]

    async def until_answer(self):
        while "ResponseReceived" not in await self.read():
            pass

    async def leave(self):
        with suppress(StreamClosedError):
            # Unless the answer is whole.
            self.h2.reset_stream(1)
        await self.flush()
        await self.is_served.wait()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.client.sock.close()
        self.inside.sock.close()


@pytest.fixture(params=[Http1, Http2])
def play(tmp_path, monkeypatch, request):
    """`play(story)` runs `story(client, place, usage)`."""
    monkeypatch.setattr(metering, "POLL_S", 0.01)

    def run(story):
        async def whole():
            (tmp_path / "locks").mkdir(exist_ok=True)
            world = World(tmp_path)
            world.session.owner = {"XDG_CONFIG_HOME": str(tmp_path)}
            capsule = world.capsule(world.project(), "x")
            world.session.store.save_agent(capsule.id, "claude", AgentTask("do it"))
            meter = Meter(world.session, capsule.id)
            place = Place(meter, tmp_path)

            async def usage():
                await meter.until_stored()
                rows = world.session.store.usage(capsule.id)
                return [(r.model, r.requests, r.input_tokens, r.output_tokens) for r in rows]

            try:
                async with asyncio.timeout(60):
                    await story(request.param(place), place, usage)
            finally:
                for sock in place.sockets:
                    sock.close()
                place.journal.close()
                meter.close()
                await world.close()

        asyncio.run(whole())

    return run


def test_a_client_that_goes_before_the_answer(play):
    async def story(client, place, usage):
        await client.ask()
        server = await place.server()
        await client.leave()
        assert await usage() == [("m-1", 1, len(BODY) // 4, 0)]
        assert not await server.fill(), "the server's connection is closed"

    play(story)


def test_a_client_that_goes_before_its_request_is_sent(play):
    async def story(client, place, usage):
        place.is_reachable = False
        await client.ask()
        await client.leave()
        assert await usage() == []

    play(story)


def test_a_client_that_goes_within_the_answer(play):
    async def story(client, place, usage):
        await client.ask()
        server = await place.server()
        body = b'[{"modelVersion": "' + b"z" * 4000
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8000\r\n\r\n"
        await server.send(head + body)
        await client.until_answer()
        await client.leave()
        [(_, requests, given, made)] = await usage()
        assert (requests, given) == (1, len(BODY) // 4)
        assert made == (8000 - 250) // 4

    play(story)


def test_a_server_that_goes_without_an_answer(play):
    async def story(client, place, usage):
        await client.ask()
        (await place.server()).sock.close()
        await client.until_answer()
        await client.leave()
        assert await usage() == [("m-1", 1, len(BODY) // 4, 0)]

    play(story)


def test_a_request_that_is_refused(play):
    async def story(client, place, usage):
        await client.ask()
        server = await place.server()
        await server.send(b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n{}")
        await client.until_answer()
        await client.leave()
        assert await usage() == []

    play(story)


def test_a_request_that_is_sent_again_after_a_quota_is_reset(play, monkeypatch):
    monkeypatch.setattr(metering, "_LEAST_WAIT_S", 0.01)

    async def story(client, place, usage):
        await client.ask()
        server = await place.server()
        await server.send(b"HTTP/1.1 429 No\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n")
        await place.server()
        await client.leave()
        assert await usage() == [("m-1", 1, len(BODY) // 4, 0)], "the second only"

    play(story)
