"""The names of capsules at ports that are published by number, over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

import pytest

from atoll.daemon.ports import site_guard
from atoll.daemon.ports.host_listeners import PortConnections, PortForward
from atoll.daemon.ports.site_guard import ForeignSiteError, is_complete
from atoll.daemon.ports.targets import HOST, LOOPBACK, Target
from atoll.drivers.network.http1 import MAX_HEAD_BYTES
from worlds import free_port

SITE = b"web.fix--shop.localhost:20117"


def request(host, line=b"GET / HTTP/1.1", end=b"\r\n"):
    return line + end + b"Accept: */*" + end + b"Host: " + host + end + end


def hello(name):
    """As much of a TLS ClientHello as is looked at."""
    body = b"\x01\x00\x00\x50" + bytes(40) + name + bytes(10)
    return b"\x16\x03\x01" + len(body).to_bytes(2, "big") + body


@pytest.mark.parametrize(
    "data",
    [
        request(SITE),
        request(SITE.upper()),
        request(b"fix--shop.localhost."),
        request(b"a--b--0123456789abcdef.localhost"),
        request(b"xn--b--0123456789abcdef.localhost"),
        request(b"xn--bcher-kva.fix--shop.localhost"),
        request(SITE, b"POST /a?b HTTP/1.0"),
        request(SITE, end=b"\n"),
        request(b"localhost\r\nhOST:" + SITE),
        b"GET /" + b"a" * MAX_HEAD_BYTES,
        hello(b"web.fix--shop.localhost"),
    ],
)
def test_names_of_capsules_are_refused(data):
    with pytest.raises(ForeignSiteError):
        is_complete(data)


@pytest.mark.parametrize(
    "data",
    [
        request(b"localhost:3000"),
        request(b"127.0.0.1:3000"),
        request(b"tenant.localhost:3000"),
        request(b"my--app.example.org"),
        request(b"xn--bcher-kva.localhost:3000"),
        request(b"shop.XN--BCHER-KVA.localhost"),
        hello(b"xn--bcher-kva.localhost"),
        request(b"localhost") + b"fix--shop.localhost",
        b"GET key\r\n",
        b"*2\r\n$3\r\nGET\r\n",
        b"hello",
        b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        hello(b"localhost"),
    ],
)
def test_everything_else_passes(data):
    assert is_complete(data)


@pytest.mark.parametrize("data", [b"G", b"GET", b"GET / HT", request(SITE)[:-2], hello(SITE)[:20]])
def test_what_is_not_whole_yet_is_waited_for(data):
    assert not is_complete(data)


@pytest.fixture
def led():
    """`led(answer, story)`: a door to a server that does `answer`; `story(port)` visits it."""

    def run(answer, story):
        async def whole():
            guests = PortConnections()
            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            target = Target(HOST, server.sockets[0].getsockname()[1], LOOPBACK[:1])
            door = PortForward(free_port(), target, guests)
            try:
                async with asyncio.timeout(30):
                    await story(door.port)
            finally:
                door.close()
                await guests.close()
                server.close()

        asyncio.run(whole())

    return run


class Server:
    """Says `banner` first, then echoes; remembers what it heard."""

    def __init__(self, banner=b""):
        self.banner = banner
        self.heard = b""

    async def __call__(self, reader, writer):
        writer.write(self.banner)
        while data := await reader.read(1 << 16):
            self.heard += data
            writer.write(data)
        writer.close()


async def talk(port, *pieces):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    writer.write_eof()
    said = await reader.read()
    writer.close()
    return said


@pytest.mark.parametrize(
    "pieces",
    [
        (b"hello",),
        (request(b"localhost:3000"), b"more"),
        (request(b"localhost:3000")[:9], request(b"localhost:3000")[9:]),
        (b"GE",),
        (),
    ],
)
def test_other_connections_go_through_unchanged(led, pieces):
    server = Server()

    async def story(port):
        assert await talk(port, *pieces) == server.heard == b"".join(pieces)

    led(server, story)


def test_request_for_a_capsule_never_arrives(led):
    server = Server()

    async def story(port):
        for pieces in [(request(SITE),), (request(SITE)[:20], request(SITE)[20:])]:
            assert (await talk(port, *pieces)).startswith(b"HTTP/1.1 421 ")
        assert await talk(port, hello(b"web.fix--shop.localhost")) == b""
        assert server.heard == b""

    led(server, story)


@pytest.mark.parametrize("banner", [b"", b"220 ready\r\n"])
def test_reset_by_the_server_reaches_a_silent_client(led, banner):
    async def fail(_, writer):
        writer.write(banner)
        await writer.drain()
        await closing.wait()
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    closing = asyncio.Event()

    async def story(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.readexactly(len(banner)) == banner
        closing.set()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()

    led(fail, story)


@pytest.mark.parametrize(
    ("banner", "is_heard"), [(b"220 ready\r\n", True), (b"HTTP/1.1 200 OK\r\n", False)]
)
def test_server_that_speaks_first(led, banner, is_heard):
    """A mail server may; an answer to a request that was not judged yet may not."""
    server = Server(banner)

    async def story(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if is_heard:
            assert await reader.readexactly(len(banner)) == banner
            writer.write(b"HELO me\r\n")
            assert await reader.readline() == b"HELO me\r\n"
        writer.close()
        await writer.wait_closed()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if is_heard:
            await reader.readexactly(len(banner))
        writer.write(request(SITE))
        said = await reader.read()
        assert (b" 421 " in said, b"200 OK" in said) == (True, False)
        assert b"Host" not in server.heard
        writer.close()

    led(server, story)


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
@pytest.mark.parametrize("host", [SITE, b"localhost:3000"])
def test_pieces_are_judged_as_the_whole(end, host):
    data, found, seen = request(host, end=end), bytearray(), 0
    with contextlib.ExitStack() as stack:
        if host == SITE:
            stack.enter_context(pytest.raises(ForeignSiteError))
        for number in range(len(data)):
            found += data[number : number + 1]
            assert is_complete(found, seen) == (number == len(data) - 1)
            seen = len(found)


def test_long_label_is_judged_in_linear_time():
    """Each of these would take minutes if the time grew with the square of the length."""
    for text in (b"-" * 60_000, b"a-" * 30_000, b"--a" * 20_000):
        assert is_complete(request(text))


async def begin(port, piece):
    """What a client hears that sends only the beginning of something, and waits."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(piece)
    try:
        return await reader.read(100)
    except ConnectionError:
        return None
    finally:
        writer.close()


@pytest.mark.parametrize("piece", [b"G", b"\x16", b"GET k"])
def test_beginning_of_no_request_is_passed_on_in_the_end(led, monkeypatch, piece):
    monkeypatch.setattr(site_guard, "_HEAD_S", 0.05)
    server = Server()

    async def story(port):
        assert await begin(port, piece) == piece

    led(server, story)


@pytest.mark.parametrize(
    "piece",
    [
        request(SITE)[:-2],
        b"GET http://fix--shop.localhost/",
        b"GET / HTTP/1.1\r\n",
        hello(b"web.fix--shop.localhost")[:-3],
        hello(b"x")[:9],
    ],
)
def test_beginning_of_a_request_never_arrives(led, monkeypatch, piece):
    """The control."""
    monkeypatch.setattr(site_guard, "_HEAD_S", 0.05)
    server = Server()

    async def story(port):
        assert piece not in (await begin(port, piece) or b"")
        assert server.heard == b""

    led(server, story)
