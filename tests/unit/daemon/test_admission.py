"""Other users of the machine at the daemon's ports: real connections of a real second user."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess

import pytest

from atoll.daemon.ports.host_listeners import ADMISSION, PortConnections, PortForward
from atoll.daemon.ports.router import Router
from atoll.daemon.ports.targets import HOST, LOOPBACK, Target
from atoll.engine.network import router
from atoll.model.errors import SpecError
from persons import require
from present import present
from worlds import Played, World, free_port, until

NOBODY = 65_534
CLIENT = r"""
import socket, sys
port, host, word, stays = int(sys.argv[1]), *sys.argv[2:4], sys.argv[4] == "stays"
try:
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    sock.sendall(f"GET /{word} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    print(sock.recv(100).decode().split("\r")[0] if stays else "left", end="")
except (ConnectionResetError, BrokenPipeError):
    print("reset", end="")
"""


def argv(place, word, *, stays=True):
    port, host = place
    program = require("/usr/bin/python3")
    return [program, "-I", "-c", CLIENT, str(port), host, word, "stays" if stays else "leaves"]


async def visit(place, word, **identity):
    """What a client gets that waits for its answer."""
    process = await asyncio.create_subprocess_exec(
        *argv(place, word), cwd="/", stdout=subprocess.PIPE, **identity
    )
    return (await process.communicate())[0].decode()


@pytest.fixture
def stranger():
    """What makes a child another user than the one who runs the tests."""
    if os.geteuid() != 0:
        if os.environ.get("CI") == "true":
            pytest.fail("needs root, to become another user")
        pytest.skip("needs root, to become another user")
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


class Backend:
    """Answers every connection, and remembers what was asked."""

    def __init__(self):
        self.heard = b""

    async def answer(self, reader, writer):
        self.heard += await reader.read(1000)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()


@pytest.fixture
def published(play):
    """`published(story)`: `story(world, backend, places)`: (port, host) of a lease and of the
    router.
    """

    def run(story):
        async def whole(world, publisher):
            backend, guests = Backend(), PortConnections()
            server = await asyncio.start_server(backend.answer, "127.0.0.1", 0)
            world.servers.append(server)
            inner, leased = server.sockets[0].getsockname()[1], free_port()
            inside = Played(world.capsule(world.project(), "one", web=3000))
            inside.doors[3000] = inner
            await publisher.update(inside, inside.found())
            world.session.owner = {"ATOLL_ROUTER_PORT": str(free_port())}
            router = Router(publisher)
            told = await router.report()
            door = PortForward(leased, Target(HOST, inner, LOOPBACK[:1]), guests)
            try:
                places = ((leased, "localhost"), (told.port, "web.one--shop.localhost"))
                await story(world, backend, places)
            finally:
                door.close()
                router._close()
                await guests.close()
                await router._connections.close()

        play(whole)

    yield run
    ADMISSION._home = None


def test_another_user_is_refused(published, stranger):
    async def story(world, backend, places):
        for place in places:
            assert await visit(place, "owner") == "HTTP/1.1 200 OK"
            assert await visit(place, "stranger", **stranger) == "reset"
        assert b"/owner" in backend.heard
        assert b"/stranger" not in backend.heard
        ADMISSION.configure(world.home)
        assert await visit(places[0], "stranger", **stranger) == "reset"
        world.session.owner = {router.SHARE_VARIABLE: "on"}
        router.remember_choice(world.session)
        for place in places:
            said = await visit(place, "stranger", **stranger)
            assert said == "HTTP/1.1 200 OK", "control: without the check"
        assert b"/stranger" in backend.heard

    published(story)


def test_another_user_cannot_write_and_leave(published, stranger):
    async def story(world, backend, places):
        def intrude(word):
            # The loop stands still meanwhile: the client is gone when its turn comes.
            subprocess.run(argv(places[0], word, stays=False), cwd="/", check=True, **stranger)

        intrude("first")
        assert await visit(places[0], "owner") == "HTTP/1.1 200 OK"
        assert b"/owner" in backend.heard
        assert b"/first" not in backend.heard, "it came before, and was not let in"
        world.session.owner = {router.SHARE_VARIABLE: "on"}
        router.remember_choice(world.session)
        ADMISSION.configure(world.home)
        intrude("second")
        await until(lambda: b"/second" in backend.heard)

    published(story)


SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_port_on_which_another_user_listens_is_not_led_to(stranger):
    """At levels that share the host's network anybody can be first on a leased port."""
    with subprocess.Popen(
        [require("/usr/bin/python3"), "-I", "-c", SERVER],
        cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, **stranger,
    ) as process:  # fmt: skip
        try:
            port = int(present(process.stdout).readline())
            with socket.create_connection(("127.0.0.1", port)) as control:
                assert control.getpeername()[1] == port
            with pytest.raises(PermissionError):
                asyncio.run(HOST.dial(port))
        finally:
            process.communicate(b"")
    with socket.create_server(("127.0.0.1", 0)) as own:
        asyncio.run(HOST.dial(own.getsockname()[1])).close()


def test_choice_is_kept(tmp_path):
    session = World(tmp_path).session
    for word, shared in [("", False), ("on", True), ("", True), ("OFF", False), ("", False)]:
        session.owner = {router.SHARE_VARIABLE: word}
        router.remember_choice(session)
        assert router.is_shared(tmp_path) is shared
    session.owner = {router.SHARE_VARIABLE: "maybe"}
    with pytest.raises(SpecError):
        router.remember_choice(session)
    session.store.close()
