"""The daemon outlives a lack of resources, which a capsule of the same user can bring about."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import sqlite3
from typing import Any

import pytest

from atoll.daemon import memory
from atoll.daemon.control import Control
from atoll.daemon.memory import MemoryTrimmer
from atoll.daemon.ports.host_listeners import accept, listen
from atoll.daemon.ports.published_capsule import read_store
from atoll.daemon.served_capsules import ServedCapsules
from atoll.engine.network import urls
from atoll.engine.state.database import DamagedError
from atoll.keeper import requests
from atoll.model.daemon_messages import AttachReply, StopRequest
from atoll.model.errors import PrerequisiteError, StateError
from atoll.testing.fake_network import FakeNetwork
from present import present
from worlds import Played, ask, free_port, until


class Exhausted:
    """While it is entered, this process can open no descriptor."""

    def __enter__(self):
        # Fewer than are open: what is open stays usable.
        self._before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, self._before[1]))
        return self

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_NOFILE, self._before)


@pytest.fixture
def logged():
    """What the loop logs from `begin()` on."""

    class Logged(list):
        def begin(self):
            asyncio.get_running_loop().set_exception_handler(lambda _, told: self.append(told))

    return Logged()


def test_look_without_descriptors_keeps_what_is_known(play, logged):
    async def story(world, publisher):
        logged.begin()
        fix = world.capsule(world.project(), "fix", web=3000)
        inside = Played(fix)
        inside.doors[3000] = await world.serve("web")
        await publisher.update(inside, inside.found())
        before = publisher.cache
        with Exhausted():
            # The control: the file that is read for it cannot be opened.
            with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
                urls.router_port(world.session)
            for _ in range(3):
                await publisher.sync()
        assert publisher.cache.capsules == before.capsules
        assert await ask(fix.ports["web"]) == "web"
        assert [type(told["exception"]) for told in logged] == [OSError]
        # What came meanwhile is seen by the next look, and the next lack is logged again.
        world.capsule(world.project(), "late")
        await publisher.sync()
        assert len(publisher.cache.capsules) == 2
        with Exhausted():
            await publisher.sync()
        assert len(logged) == 2

    play(story)


def test_store_that_cannot_be_read_keeps_what_is_known(play, logged):
    async def story(world, publisher):
        logged.begin()
        world.capsule(world.project(), "fix", web=3000)
        await publisher.sync()
        before = publisher.cache
        # By somebody else, which the daemon notices; what it wrote itself it knows.
        with contextlib.closing(sqlite3.connect(world.session.store.path)) as other:
            other.execute("ALTER TABLE capsules RENAME TO elsewhere")
        # The control.
        with pytest.raises(DamagedError):
            read_store(world.session)
        await publisher.sync()
        await publisher.sync()
        assert publisher.cache is before
        assert len(logged) == 1

    play(story)


def test_capsules_are_found_when_the_store_can_be_read_again(play, logged, monkeypatch):
    async def story(world, publisher):
        logged.begin()
        monkeypatch.setattr("atoll.daemon.served_capsules._FIND_S", 0.01)
        world.session.store._db.execute("ALTER TABLE capsules RENAME TO elsewhere")
        async with ServedCapsules(world.session, publisher, FakeNetwork) as capsules:
            await capsules.find_living()
            finding = present(capsules._finding)
            assert not finding.done()
            world.session.store._db.execute("ALTER TABLE elsewhere RENAME TO capsules")
            await until(finding.done)
        assert len(logged) == 1

    play(story)


@pytest.mark.parametrize(
    ("error", "ends"), [(PrerequisiteError("full"), False), (StateError("newer"), True)]
)
def test_only_an_error_over_the_home_ends_the_looks(play, logged, error, ends):
    async def fail():
        raise error

    async def story(world, publisher):
        logged.begin()
        async with ServedCapsules(world.session, publisher, FakeNetwork) as capsules:
            look = asyncio.create_task(fail())
            await asyncio.wait({look})
            if ends:
                with pytest.raises(StateError):
                    capsules._judge(1, look)
            else:
                capsules._judge(1, look)

    play(story)


def test_memory_is_looked_at_again(monkeypatch):
    async def story():
        monkeypatch.setattr(memory, "_CHECK_S", 0.001)
        with Exhausted():
            trimmer = MemoryTrimmer()
            # The control.
            with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
                trimmer.trim_if_grown()
            serving = asyncio.create_task(trimmer.serve())
            done, _ = await asyncio.wait({serving}, timeout=0.05)
        assert not done
        serving.cancel()

    asyncio.run(story())


@pytest.mark.parametrize("error", [OSError(errno.ENFILE, "full"), KeyError("x"), ValueError()])
def test_request_that_fails_ends_only_itself(logged, tmp_path, error):
    async def answer(request):
        if isinstance(request, StopRequest):
            raise error
        return AttachReply(held=True, problems={})

    async def story():
        logged.begin()
        path = str(tmp_path / "socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen()
            listener.setblocking(False)
            serving = asyncio.create_task(Control(listener, answer).serve())

            def talk(**request):
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                    sock.settimeout(60)
                    sock.connect(path)
                    return requests.ask(sock, request)[0]

            assert (await asyncio.to_thread(talk, do="stop"))["kind"] == "driver"
            assert (await asyncio.to_thread(talk, do="attach", capsule=1))["held"]
            for bad in ({"do": "policy", "capsule": 1}, {"do": "attach", "capsule": "1"}, {}):
                assert (await asyncio.to_thread(talk, **bad))["kind"] == "spec"
            assert [told["exception"] for told in logged] == [error]
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(story())


def test_listener_that_cannot_be_watched_is_closed_or_tried_again(monkeypatch, descriptors):
    async def story():
        loop = asyncio.get_running_loop()
        received: list[Any] = []
        real, is_full = loop.add_reader, True

        def add_reader(*arguments):
            if is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments)

        monkeypatch.setattr(loop, "add_reader", add_reader)
        before = descriptors()
        port = free_port()
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            accept(listen(port), received.append)
        assert descriptors() == before
        is_full = False
        reception = accept(listen(port), received.append)
        # As after a pause.
        is_full = True
        reception._pause(reception._sockets[0])
        reception._watch(reception._sockets[0])
        is_full = False
        with socket.create_connection(("127.0.0.1", port)):
            await until(lambda: received)
        received[0].close()
        reception.close()

    asyncio.run(story())
