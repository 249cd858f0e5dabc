"""The daemon's loop without epoll watches, as a capsule of the same user can bring it about."""

from __future__ import annotations

import asyncio
import errno
import os
import selectors
import socket

import pytest

from atoll.daemon import selector
from atoll.daemon.fair_loop import FairLoop
from atoll.daemon.ports.host_listeners import PortConnections, PortForward
from atoll.daemon.ports.targets import HOST, LOOPBACK, Target
from atoll.daemon.selector import ScarceSelector
from worlds import free_port

EVENTS = selectors.EVENT_READ | selectors.EVENT_WRITE


class Kernel:
    """An epoll object of a user who may add only so many watches more."""

    def __init__(self, epoll, left, code=errno.ENOSPC):
        self.epoll, self.left, self.code = epoll, left, code

    def register(self, *arguments):
        if self.left == 0:
            raise OSError(self.code, os.strerror(self.code))
        self.left -= 1
        return self.epoll.register(*arguments)

    def __getattr__(self, name):
        return getattr(self.epoll, name)


def bounded(left, code=errno.ENOSPC):
    """Makes an `EpollSelector` with so many watches."""

    def make():
        made = selectors.EpollSelector()
        made._selector = Kernel(made._selector, left, code)  # type: ignore[attr-defined]
        return made

    return make


@pytest.fixture
def pairs():
    made = [socket.socketpair() for _ in range(4)]
    yield made
    for pair in made:
        for sock in pair:
            sock.close()


def test_everything_registered_stays_so(pairs):
    left, right = zip(*pairs, strict=True)
    scarce = ScarceSelector(bounded(3))
    for number, sock in enumerate(left[:3]):
        scarce.register(sock, selectors.EVENT_READ, number)
    assert not scarce.has_fallen_back
    scarce.register(left[3].fileno(), EVENTS, 3)
    assert scarce.has_fallen_back
    for sock in right:
        sock.send(b"x")
    found = {key.data: events for key, events in scarce.select(0)}
    assert found == {0: 1, 1: 1, 2: 1, 3: EVENTS}
    scarce.modify(left[3].fileno(), selectors.EVENT_READ, "new")
    scarce.unregister(left[0])
    assert {key.data for key, _ in scarce.select(0)} == {1, 2, "new"}
    assert scarce.get_key(left[1]).data == 1
    scarce.close()


def test_plain_selector_fails(pairs):
    """The control."""
    plain = bounded(1)()
    plain.register(pairs[0][0], EVENTS)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        plain.register(pairs[1][0], EVENTS)
    plain.close()


def test_other_errors_are_raised(pairs):
    scarce = ScarceSelector(bounded(1, errno.EPERM))
    scarce.register(pairs[0][0], EVENTS)
    with pytest.raises(PermissionError):
        scarce.register(pairs[1][0], EVENTS)
    with pytest.raises(KeyError):
        scarce.register(pairs[0][0], EVENTS)
    assert not scarce.has_fallen_back
    scarce.close()


async def carry_through_a_door():
    async def echo(reader, writer):
        writer.write(await reader.read())
        writer.close()

    guests = PortConnections()
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    door = PortForward(
        free_port(), Target(HOST, server.sockets[0].getsockname()[1], LOOPBACK[:1]), guests
    )
    said = []
    try:
        async with asyncio.timeout(30):
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
                writer.write(b"hello")
                writer.write_eof()
                said.append(await reader.read())
                writer.close()
    finally:
        door.close()
        await guests.close()
        server.close()
    return said


@pytest.mark.parametrize("left", range(2, 8))
def test_door_carries_without_watches(monkeypatch, left):
    """Wherever in the life of a connection the last watch is used up."""
    monkeypatch.setattr(selector.ScarceSelector.__init__, "__defaults__", (bounded(left),))
    with asyncio.Runner(loop_factory=FairLoop) as runner:
        assert runner.run(carry_through_a_door()) == [b"hello"] * 3
        assert runner.get_loop()._selector.has_fallen_back  # type: ignore[attr-defined]


def test_plain_loop_does_not(pairs):
    """The control."""

    async def story():
        loop = asyncio.get_running_loop()
        loop.add_reader(pairs[0][0], print)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            loop.add_reader(pairs[1][0], print)

    plain = bounded(2)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(plain())) as runner:
        runner.run(story())
