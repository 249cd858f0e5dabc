"""Rates and shares: what one capsule uses up is not missing to another. Counted, not timed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from ipaddress import ip_address

import pytest

from atoll.daemon.egress import host_network as worlds
from atoll.daemon.egress.dialer import Dialer
from atoll.daemon.egress.egress_log_writer import Journal
from atoll.daemon.egress.gateway import EgressAcceptor
from atoll.daemon.egress.host_network import HostNetwork, UnreachableError
from atoll.daemon.egress.limits import (
    MOST_CONNECTIONS,
    EgressShare,
    Pace,
    TokenBucket,
    most_connections,
)
from atoll.model.egress import Destination, Policy

ADDRESS = ip_address("127.0.0.1")
HOUR = 3600.0


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


async def until(predicate):
    while not predicate():  # noqa: ASYNC110 - what is counted has no event
        await asyncio.sleep(0)


def test_bucket_fills_up_to_its_capacity():
    clock = Clock()
    bucket = TokenBucket(3, 2.0, clock)
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    clock.now = 0.5
    assert [bucket.take() for _ in range(2)] == [True, False]
    clock.now = 100.0
    assert bucket.level == 3
    assert not bucket.take(4)
    assert bucket.take(3)


def test_bucket_lends_in_turn():
    bucket = TokenBucket(1, 2.0, Clock())
    assert [bucket.reserve() for _ in range(4)] == [0.0, 0.5, 1.0, 1.5]


def test_pace_of_one_delays_no_other():
    async def run():
        loud, quiet = Pace(5, 1 / HOUR), Pace(5, 1 / HOUR)
        waiting = [asyncio.create_task(loud.wait()) for _ in range(1000)]
        for _ in range(3):
            await asyncio.sleep(0)
        assert sum(task.done() for task in waiting) == 5
        # It returns at once, or the test never ends.
        await quiet.wait()
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("descriptors", "expected"),
    [(1 << 20, MOST_CONNECTIONS), (20_000, MOST_CONNECTIONS), (4096, 128), (1024, 32)],
)
def test_connections_leave_descriptors_for_others(descriptors, expected):
    assert most_connections(descriptors) == expected


def test_connections_of_a_capsule_are_counted_through_all_of_its_listeners():
    async def run():
        share = EgressShare(most=3)
        refused = []
        receptions = [EgressAcceptor(share, when_full=lambda: refused.append(1)) for _ in range(2)]
        served: asyncio.Queue[object] = asyncio.Queue()

        async def hold(client):
            served.put_nowait(client)
            await client.fill()

        with contextlib.ExitStack() as opened:
            listeners = [opened.enter_context(socket.create_server(("127.0.0.1", 0)))
                         for _ in receptions]  # fmt: skip
            tasks = []
            for reception, listener in zip(receptions, listeners, strict=True):
                listener.setblocking(False)
                tasks.append(asyncio.create_task(reception.receive(listener, hold)))
            clients = []

            async def dial(listener):
                client = opened.enter_context(socket.socket())
                client.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(client, listener.getsockname())
                clients.append(client)
                return client

            for listener in (*listeners, listeners[0]):
                await dial(listener)
                await served.get()
            for listener in listeners:
                client = await dial(listener)
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
            assert len(refused) == 2
            # One that ends makes room for another.
            clients[0].close()
            await until(lambda: not share.is_full)
            await dial(listeners[1])
            await served.get()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for reception in receptions:
                await reception.close()

    asyncio.run(asyncio.wait_for(run(), 60))


class Resolver:
    """Answers at once for `fast.example`, and for all others on request."""

    def __init__(self):
        self.asked = []
        self.goes_on = threading.Event()

    def __call__(self, name):
        self.asked.append(name)
        if name != "fast.example":
            self.goes_on.wait(60)
        raise OSError("no such name")


@contextlib.contextmanager
def resolving(resolver):
    world = HostNetwork(lookup=resolver, own=frozenset)
    try:
        yield world
    finally:
        resolver.goes_on.set()
        world.close()


def way_of(world, directory):
    directory.mkdir()
    return Dialer(
        capsule="x",
        policy=lambda: Policy("open"),
        journal=Journal(directory),
        host_network=world,
        share=EgressShare(),
    )


async def reach(way, name):
    with contextlib.suppress(UnreachableError):
        await way.connect(Destination(name, 443))


def test_slow_names_of_one_capsule_leave_lookups_for_others(tmp_path):
    resolver = Resolver()

    async def run(world):
        loud, quiet = way_of(world, tmp_path / "loud"), way_of(world, tmp_path / "quiet")
        slow = [asyncio.create_task(reach(loud, f"n{n}.example")) for n in range(200)]
        await until(lambda: len(resolver.asked) >= 4)
        await reach(quiet, "fast.example")
        assert len(resolver.asked) == 5
        resolver.goes_on.set()
        await asyncio.wait(slow)

    with resolving(resolver) as world:
        asyncio.run(asyncio.wait_for(run(world), 60))


def test_slow_names_without_a_share_take_all_lookups():
    """The control."""
    resolver = Resolver()

    async def run(world):
        slow = [asyncio.create_task(world.resolve(f"n{n}.example")) for n in range(200)]
        await until(lambda: len(resolver.asked) >= worlds._LOOKUPS)
        fast = asyncio.create_task(world.resolve("fast.example"))
        for _ in range(100):
            await asyncio.sleep(0)
        assert "fast.example" not in resolver.asked
        resolver.goes_on.set()
        await asyncio.wait([*slow, fast])
        for task in (*slow, fast):
            task.exception()

    with resolving(resolver) as world:
        asyncio.run(asyncio.wait_for(run(world), 60))
