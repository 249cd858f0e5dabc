"""The router with real connections: a small HTTP server of the test's own stands behind it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import socket

import pytest

from atoll.daemon.ports import router as router_module
from atoll.daemon.ports.router import Router
from worlds import Played, free_port, until


class Backend:
    """Speaks as much HTTP as the tests need, and remembers what it was asked."""

    def __init__(self):
        self.heads = []
        self.connections = 0

    async def answer(self, reader, writer):
        self.connections += 1
        try:
            while head := await self._head(reader):
                if not await self._respond(head, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _head(self, reader):
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b""

    async def _respond(self, head, reader, writer):
        self.heads.append(head)
        path = head.split(b" ")[1].decode()
        if path == "/socket" and b"websocket" in head:
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n")
            while data := await reader.read(1 << 16):
                writer.write(data[::-1])
                await writer.drain()
            return False
        if path == "/events":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            for number in range(3):
                writer.write(b"data: %d\n\n" % number)
                await writer.drain()
                await asyncio.sleep(0.05)
            return False
        body = await self._body(head, reader, writer)
        await respond(writer, body)
        return b"Connection: close" not in head

    async def _body(self, head, reader, writer):
        lower = head.lower()
        if b"expect: 100-continue" in lower:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        digest, count = hashlib.sha256(), 0
        if b"transfer-encoding: chunked" in lower:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                data = await reader.readexactly(size + 2)
                digest.update(data[:-2])
                count += size
            await reader.readuntil(b"\r\n")
        elif b"content-length:" in lower:
            left = int(lower.split(b"content-length:")[1].split(b"\r\n")[0])
            while left:
                data = await reader.read(min(left, 1 << 18))
                if not data:
                    raise ConnectionError
                digest.update(data)
                count += len(data)
                left -= len(data)
        return f"{count} {digest.hexdigest()[:8]}".encode()


async def respond(writer, body):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    await writer.drain()


EMPTY = "0 e3b0c442"


class Place:
    """Two capsules of one project with a backend each, and the router's port."""

    def __init__(self, world, publisher):
        self.world = world
        self.publisher = publisher
        world.session.owner = {"ATOLL_ROUTER_PORT": str(free_port())}
        publisher.router_port = int(world.session.owner["ATOLL_ROUTER_PORT"])
        self.port = publisher.router_port
        self.backends = {}
        self.task = asyncio.create_task(Router(publisher).serve())

    async def capsule(self, project, name, **numbers):
        record = self.world.capsule(project, name, **numbers)
        inside = Played(record)
        for service, number in numbers.items():
            backend = self.backends[f"{service}.{name}"] = Backend()
            server = await asyncio.start_server(backend.answer, "127.0.0.1", 0)
            self.world.servers.append(server)
            inside.doors[number] = server.sockets[0].getsockname()[1]
        await self.publisher.update(inside, inside.found())
        return inside

    def host(self, *labels):
        """`([service,] capsule, project)`; a single label stands as it is."""
        *names, capsule, project = labels if len(labels) > 1 else ("", *labels)
        site = f"{capsule}--{project}" if capsule else project
        return f"{'.'.join((*names, site))}.localhost:{self.port}"

    async def connect(self):
        await until(lambda: not self.publisher.router_trouble)
        for _ in range(100):
            try:
                return await asyncio.open_connection("127.0.0.1", self.port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.02)
        raise AssertionError("the router does not listen")

    async def get(self, host, path="/", headers="", method="GET"):
        """(status, headers, body) of one request with a connection of its own."""
        reader, writer = await self.connect()
        text = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n"
        writer.write(text.encode("latin-1"))
        said = await reader.read()
        writer.close()
        head, _, body = said.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), head.decode(), body.decode()


@pytest.fixture
def visit(play):
    """`visit(story)`: runs `story(place)` with the capsules `one` and `two` of `shop`."""

    def run(story):
        async def whole(world, publisher):
            place = Place(world, publisher)
            project = world.project()
            place.project = project  # type: ignore[attr-defined]
            await place.capsule(project, "one", web=3000, api=4000)
            await place.capsule(project, "two", web=3000)
            try:
                await story(place)
            finally:
                place.task.cancel()
                await asyncio.gather(place.task, return_exceptions=True)

        play(whole)

    return run


def test_names_lead_to_their_capsules(visit):
    async def story(place):
        for labels, backend in [
            (("web", "one", "shop"), "web.one"),
            (("3000", "one", "shop"), "web.one"),
            (("api", "one", "shop"), "api.one"),
            (("WEB", "Two", "shop"), "web.two"),
            (("two", "shop"), "web.two"),
        ]:
            before = len(place.backends[backend].heads)
            assert (await place.get(place.host(*labels)))[::2] == (200, EMPTY)
            assert len(place.backends[backend].heads) == before + 1
        host = place.host("web", "one", "shop")
        head = place.backends["web.one"].heads[0].decode()
        assert f"Host: {host}\r\n" in head
        assert f"X-Forwarded-Host: {host}\r\nX-Forwarded-Proto: http\r\n" in head

    visit(story)


def test_unknown_names_get_a_page_that_lists_the_right_ones(visit):
    async def story(place):
        right = f"http://web.one--shop.localhost:{place.port}"
        other = f"http://web.two--shop.localhost:{place.port}"
        for labels, listed in [
            (("nope", "one", "shop"), {right}),
            (("a", "b", "one", "shop"), {right}),
            (("web", "nope", "shop"), {right, other}),
            (("nope", "shop"), {right, other}),
            (("shop",), {right, other}),
            (("nope",), set()),
            (("web", "nope", "nope"), set()),
        ]:
            status, _, body = await place.get(place.host(*labels))
            assert (status, {url for url in (right, other) if url in body}) == (404, listed)
        status, head, body = await place.get(
            place.host("nope", "one", "shop"), headers="Accept: text/html,*/*\r\n"
        )
        assert "text/html" in head
        assert f'<a href="{right}">' in body
        status, head, body = await place.get(
            place.host("nope", "shop"), headers="Accept: application/json\r\n"
        )
        assert right in [link["url"] for link in json.loads(body)["urls"]]
        status, head, body = await place.get(place.host("nope"), method="HEAD")
        assert (status, body) == (404, "")

    visit(story)


@pytest.mark.parametrize(
    "headers",
    [
        "Sec-Fetch-Site: same-origin\r\n",
        "Sec-Fetch-Site: same-site\r\n",
        "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n",
        "Origin: http://past--shop.localhost\r\n",
        "Referer: http://past--shop.localhost/\r\n",
    ],
)
def test_pages_are_shown_no_other_names(visit, headers):
    """A page of a capsule that was removed, or of a port that is gone, can read this answer."""

    async def story(place):
        host = place.host("past", "shop")
        assert "one--shop" in (await place.get(host))[2], "control: a person is shown them"
        typed = await place.get(host, headers="Sec-Fetch-Site: none\r\n")
        assert "one--shop" in typed[2], "control: an address bar, too"
        status, _, body = await place.get(host, headers=headers)
        assert (status, "one--shop" in body) == (404, False)

    visit(story)


def test_names_of_other_projects_never_appear(visit):
    async def story(place):
        other = place.world.project("secret", number=2, root="/elsewhere")
        await place.capsule(other, "hidden", web=3000)
        control = await place.get(place.host("nope", "secret"))
        assert "hidden--secret" in control[2]
        for labels in [("nope", "shop"), ("nope",), ("nope", "one", "shop"), ("nope", "nope")]:
            _, _, body = await place.get(place.host(*labels))
            assert "hidden" not in body
            assert "secret" not in body

    visit(story)


def test_former_names_lead_to_the_new_ones_and_nowhere_else(visit):
    async def story(place):
        for old, new in [
            ("web.one.shop", "web.one--shop"),
            ("3000.two.shop", "3000.two--shop"),
            ("one.shop", "one--shop"),
        ]:
            status, head, body = await place.get(f"{old}.localhost:{place.port}")
            assert (status, f"http://{new}.localhost:{place.port}" in body) == (410, True)
            assert "location:" not in head.lower()
            assert (await place.get(f"{new}.localhost:{place.port}"))[0] == 200
        for old in ("web.nope.shop", "web.one.nope"):
            assert (await place.get(f"{old}.localhost:{place.port}"))[0] == 404
        heads = b"".join(head for b in place.backends.values() for head in b.heads)
        assert b"one.shop" not in heads
        assert b"two.shop" not in heads

    visit(story)


@pytest.mark.parametrize("name", ["xn", "a--b", "a" * 40])
def test_names_that_need_a_hash_are_routed(visit, name):
    async def story(place):
        other = place.world.project("p" * 40, number=2, root="/elsewhere")
        for project in (other, place.project):
            await place.capsule(project, name, web=3000)
            [row] = (await place.publisher.status(project.id))["ports"][-1:]
            host = row["url"].removeprefix("http://")
            assert all(len(label) <= 63 for label in host.split("."))
            assert not host.removeprefix("web.").startswith("xn--")
            assert (await place.get(host))[0] == 200
            assert len(place.backends[f"web.{name}"].heads) == 1

    visit(story)


@pytest.mark.parametrize(
    "host", ["evil.org", "127.0.0.1", "web.one--shop.localhost.evil.org", "<script>.org"]
)
def test_foreign_host_reaches_no_capsule(visit, host):
    async def story(place):
        status, _, body = await place.get(host, headers="Accept: text/html\r\n")
        assert status == 421
        assert "<script>" not in body
        assert "shop" not in body
        assert "localhost" not in body
        assert all(not backend.heads for backend in place.backends.values())

    visit(story)


def test_other_host_on_the_same_connection_is_refused_in_order(visit):
    async def story(place):
        one, two = (place.host("web", name, "shop") for name in ("one", "two"))
        reader, writer = await place.connect()
        for host in (one, one, two, one):
            writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        said = await reader.read()
        assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"200", b"200", b"421"]
        assert len(place.backends["web.one"].heads) == 2
        assert place.backends["web.two"].heads == []
        writer.close()

    visit(story)


def test_keep_alive_and_pipelining(visit):
    async def story(place):
        reader, writer = await place.connect()
        host = place.host("web", "one", "shop")
        request = f"POST /%d HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\n\r\nabc"
        writer.write("".join(request % number for number in range(20)).encode())
        for _ in range(20):
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"200 OK" in head
            assert (await reader.readexactly(10)).startswith(b"3 ")
        paths = [head.split(b" ")[1] for head in place.backends["web.one"].heads]
        assert paths == [b"/%d" % number for number in range(20)]
        assert place.backends["web.one"].connections == 1
        writer.close()

    visit(story)


def test_request_in_tiny_pieces_and_expect(visit):
    async def story(place):
        reader, writer = await place.connect()
        text = (
            f"POST / HTTP/1.1\r\nHost: {place.host('web', 'one', 'shop')}\r\n"
            "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for character in text:
            writer.write(character.encode())
            await writer.drain()
        assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
        for piece in (b"3\r", b"\nab", b"c\r\n", b"0\r\n\r\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        assert (await reader.readexactly(10)).startswith(b"3 ba7816bf"[:10])
        writer.close()

    visit(story)


def test_http_1_0_and_a_client_that_ends_its_side(visit):
    async def story(place):
        reader, writer = await place.connect()
        writer.write(f"GET / HTTP/1.0\r\nHost: {place.host('web', 'one', 'shop')}\r\n\r\n".encode())
        writer.write_eof()
        assert (await reader.read()).endswith(EMPTY.encode())
        writer.close()
        reader, writer = await place.connect()
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()

    visit(story)


def test_web_socket(visit):
    async def story(place):
        reader, writer = await place.connect()
        host = place.host("web", "one", "shop")
        upgrade = f"Host: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        # First on the same connection a plain request, and one that is not upgraded.
        writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        await reader.readuntil(EMPTY.encode())
        writer.write(f"GET /no HTTP/1.1\r\n{upgrade}".encode())
        await reader.readuntil(EMPTY.encode())
        writer.write(f"GET /socket HTTP/1.1\r\n{upgrade}".encode())
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        for size in (1, 10, 1 << 16, 1 << 20):
            data = b"ab" * size
            writer.write(data)
            assert sorted(await reader.readexactly(len(data))) == sorted(data)
        writer.close()

    visit(story)


def test_refused_upgrade_does_not_open_the_way_to_other_hosts(visit):
    async def story(place):
        reader, writer = await place.connect()
        one, two = (place.host("web", name, "shop") for name in ("one", "two"))
        upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        writer.write(f"GET /no HTTP/1.1\r\nHost: {one}\r\n{upgrade}".encode())
        writer.write(f"GET /smuggled HTTP/1.1\r\nHost: {two}\r\n\r\n".encode())
        said = await reader.read()
        assert b" 421 " in said
        assert all(b"smuggled" not in head for b in place.backends.values() for head in b.heads)
        writer.close()

    visit(story)


def test_events_come_one_by_one(visit):
    async def story(place):
        reader, writer = await place.connect()
        host = place.host("web", "one", "shop")
        writer.write(f"GET /events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        assert [await reader.readuntil(b"\n\n") for _ in range(3)] == [
            b"data: %d\n\n" % number for number in range(3)
        ]
        assert await reader.read() == b""
        writer.close()

    visit(story)


@pytest.mark.slow
def test_large_upload_is_not_held(visit):
    """1 GiB goes through in pieces: what the process holds does not grow by a fraction of it."""

    async def story(place):
        reader, writer = await place.connect()
        size, piece = 1 << 30, bytes(1 << 20)
        host = place.host("web", "one", "shop")
        writer.write(f"PUT / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {size}\r\n\r\n".encode())
        before = memory_bytes()
        for _ in range(size // len(piece)):
            writer.write(piece)
            await writer.drain()
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        assert (await reader.read(40)).startswith(b"%d " % size)
        assert memory_bytes() - before < 64 << 20
        writer.close()

    visit(story)


def memory_bytes():
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * 4096


def test_nothing_listens(visit):
    async def story(place):
        project = place.project
        await place.capsule(project, "idle")
        record = place.world.capsule(project, "later", web=3000)
        status, _, body = await place.get(place.host("web", "later", "shop"))
        assert status == 503
        assert "nothing listens in `later`" in body
        assert "atoll run later" in body
        inside = Played(record)
        await place.publisher.update(inside, set())
        assert (await place.get(place.host("later", "shop")))[0] == 503
        assert (await place.get(place.host("idle", "shop")))[0] == 404

    visit(story)


def test_only_port_of_a_capsule_needs_no_name(visit):
    async def story(place):
        await place.capsule(place.project, "single", api=4000)
        assert (await place.get(place.host("single", "shop")))[0] == 200
        await place.capsule(place.project, "double", api=4000, db=5000)
        assert (await place.get(place.host("double", "shop")))[0] == 404

    visit(story)


def test_second_project_of_the_same_name_has_a_suffix(visit):
    async def story(place):
        other = place.world.project("shop", number=2, root="/elsewhere")
        await place.capsule(other, "one", web=3000)
        backend = place.backends["web.one"]
        assert (await place.get(place.host("web", "one", "shop-00000002")))[0] == 200
        assert len(backend.heads) == 1
        told = await place.publisher.status(other.id)
        assert "`shop-00000002` in host names" in told["note"]
        assert (await place.publisher.status(place.project.id))["note"] is None

    visit(story)


def test_server_that_answers_before_it_has_read_all(visit, monkeypatch):
    async def story(place):
        async def refuse(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        place.world.servers.append(server)
        record = place.world.capsule(place.project, "small", web=3000)
        inside = Played(record)
        inside.doors[3000] = server.sockets[0].getsockname()[1]
        await place.publisher.update(inside, inside.found())
        reader, writer = await place.connect()
        host = place.host("web", "small", "shop")
        writer.write(f"PUT / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 99999999\r\n\r\n".encode())
        writer.write(bytes(1 << 20))
        assert b" 413 " in await reader.readline()
        writer.close()

    visit(story)


@pytest.mark.parametrize("beginning", [b"", b"GET / HTTP/1.1\r\nHos"])
def test_slow_client_is_shown_out(visit, monkeypatch, beginning):
    monkeypatch.setattr(router_module, "_FIRST_S", 0.2)
    monkeypatch.setattr(router_module, "_HEAD_S", 0.2)

    async def story(place):
        reader, writer = await place.connect()
        writer.write(beginning)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()

    visit(story)


def test_bad_request_after_a_good_one_is_answered(visit):
    async def story(place):
        reader, writer = await place.connect()
        host = place.host("web", "one", "shop")
        writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\nnonsense\r\n\r\n".encode())
        said = await reader.read()
        assert said.index(b"200 OK") < said.index(b" 400 ")
        writer.close()

    visit(story)


def test_stranger_on_the_routers_port_is_reported_and_waited_for(play, monkeypatch):
    monkeypatch.setattr(router_module, "_AGAIN_S", 0.05)

    async def story(world, publisher):
        project = world.project()
        world.session.owner = {"ATOLL_ROUTER_PORT": str(free_port())}
        publisher.router_port = int(world.session.owner["ATOLL_ROUTER_PORT"])
        with socket.create_server(("127.0.0.1", publisher.router_port)):
            task = asyncio.create_task(Router(publisher).serve())
            await until(lambda: publisher.router_trouble)
            told = (await publisher.status(project.id))["router"]
            assert told["port"] == publisher.router_port
            assert "in use" in told["trouble"]
        await until(lambda: publisher.router_trouble is None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    play(story)
