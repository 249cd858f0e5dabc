"""How many connections a capsule may have, so that one leaves room for the others."""

from __future__ import annotations

import asyncio

import pytest

from atoll.daemon.ports.host_listeners import PortConnections, PortForward
from atoll.daemon.ports.targets import HOST, Target
from worlds import ask, until


async def connect_many(door, count):
    """So many clients; those that were served are counted in the list that is returned."""
    arrived, writers = [], []

    async def visit():
        reader, writer = await asyncio.open_connection("127.0.0.1", door)
        writers.append(writer)
        if await reader.read(100):
            arrived.append(writer)

    tasks = [asyncio.create_task(visit()) for _ in range(count)]
    await until(lambda: len(writers) == count)
    return arrived, writers, tasks


@pytest.mark.parametrize(("descriptors", "served"), [(160, 20), (100_000, 30)])
def test_connections_of_one_capsule_are_bounded(play, descriptors, served):
    """With many descriptors, the control, all are served."""

    async def story(world, publisher):
        del publisher
        guests = PortConnections(descriptors)
        port = await world.serve("hello")
        flooded, other = (
            PortForward(free, Target(HOST, port, ("127.0.0.1",), number), guests)
            for number, free in enumerate(world.free_ports(2), start=1)
        )
        try:
            arrived, writers, tasks = await connect_many(flooded.port, 30)
            await until(lambda: len(arrived) == served)
            # The neighbour is served at once.
            assert await ask(other.port) == "hello"
            assert len(arrived) == served
            # The rest waits in the queue of the kernel, and comes in as others leave.
            for writer in list(arrived):
                writer.close()
            await until(lambda: len(arrived) == 30)
            await asyncio.gather(*tasks)
            for writer in writers:
                writer.close()
        finally:
            flooded.close()
            other.close()
            await guests.close()

    play(story)


def test_each_capsule_has_a_reserve(play):
    """When capsules together have all connections, another one still gets its own."""

    async def story(world, publisher):
        del world, publisher
        guests = PortConnections(160)
        forever = asyncio.Event()

        async def stay():
            await forever.wait()

        for capsule_id in (1, 2, 3):
            while guests.has_room(capsule_id):
                guests.serve(stay(), capsule_id)
        assert len(guests) == 60
        assert guests.has_room(4)
        assert not guests.has_room(1)
        await guests.close()
        assert guests.has_room(1)

    play(story)
