"""Egress, host grants and ports of capsules, over any network that fulfils the contract."""

from __future__ import annotations

import asyncio
import socket

import pytest

from atoll.daemon.served_capsules import ServedCapsules
from atoll.drivers.contracts import NetworkGone
from atoll.engine.capsule import parts
from atoll.engine.network.egress_log import read_attempts
from atoll.keeper.networks import NAMES_PORT, PROXY_PORT
from atoll.testing.fake_network import FakeNetwork
from worlds import ask, free_port, plan_of, until

STREAM, DATAGRAM = int(socket.SOCK_STREAM), int(socket.SOCK_DGRAM)


def lease(world, *, allow=(), **numbers):
    """A capsule with a network of its own."""
    directory = world.home / "fix"
    directory.mkdir()
    plan = plan_of("fix", "sandbox", numbers)
    isolation = plan.isolation._replace(home="/home/agent", network="allow", allow=allow)
    plan = plan._replace(directory=str(directory), isolation=isolation)
    leases = dict(zip(numbers, world.free_ports(len(numbers)), strict=True))
    [made] = world.session.store.lease_capsules(world.project(), [(plan, leases)], parts.leases)
    return made


class Served:
    """Capsules that are served, each over a fake network."""

    def __init__(self, world, publisher):
        self.networks = {}
        self.capsules = ServedCapsules(world.session, publisher, self.network_of)

    def network_of(self, capsule):
        return self.networks.setdefault(capsule.id, FakeNetwork(capsule))


def test_egress_is_refused_and_logged(play):
    async def story(world, publisher):
        capsule = lease(world)
        served = Served(world, publisher)
        async with served.capsules as capsules:
            await capsules.attach(capsule)
            [network] = served.networks.values()
            assert {port for _, port in network.opened} >= {PROXY_PORT, NAMES_PORT}
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", network.opened[STREAM, PROXY_PORT]
            )
            writer.write(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n")
            assert b" 403 " in await reader.readline()
            writer.close()
            assert capsules.status()[0]["problems"] == {}
        # Leaving closes what was opened inside.
        assert network.opened == {}
        assert not network.is_connected
        [refused] = read_attempts(world.home / "fix")
        assert (refused.place, refused.port, refused.allowed) == ("example.org", 443, False)

    play(story)


def test_port_of_the_host_that_is_granted_is_reached_from_inside(play):
    async def story(world, publisher):
        port = await world.serve("of the host")
        capsule = lease(world, allow=(f"host:{port}",))
        served = Served(world, publisher)
        async with served.capsules as capsules:
            await capsules.attach(capsule)
            [network] = served.networks.values()
            assert await ask(network.opened[STREAM, port]) == "of the host"

    play(story)


def test_port_that_a_program_inside_has_taken_is_a_problem(play):
    async def story(world, publisher):
        port = free_port()
        capsule = lease(world, allow=(f"host:{port}",))
        served = Served(world, publisher)
        served.network_of(capsule).serve(port, free_port())
        async with served.capsules as capsules:
            await capsules.attach(capsule)
            [status] = capsules.status()
            assert list(status["problems"]) == [f"host:{port}"]

    play(story)


def test_ports_inside_are_published(play):
    async def story(world, publisher):
        capsule = lease(world, web=3000)
        served = Served(world, publisher)
        network = served.network_of(capsule)
        network.serve(3000, await world.serve("inside"))
        async with served.capsules as capsules:
            await capsules.attach(capsule)
            serving = asyncio.create_task(capsules.serve())
            answer = None
            async with asyncio.timeout(10):
                while answer is None:
                    await asyncio.sleep(0.01)
                    answer = await ask(capsule.ports["web"])
            assert answer == "inside"
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving

    play(story)


def test_network_that_ends_is_served_no_more(play):
    async def story(world, publisher):
        capsule = lease(world)
        served = Served(world, publisher)
        async with served.capsules as capsules:
            await capsules.attach(capsule)
            network = served.network_of(capsule)
            network.end()
            await until(lambda: not capsules.are_needed)
            assert network.opened == {}
            with pytest.raises(NetworkGone):
                await capsules.attach(capsule)

    play(story)


def test_capsule_on_the_network_of_the_host_is_not_served(play):
    async def story(world, publisher):
        capsule = world.capsule(world.project(), "shared", level="clone")
        served = Served(world, publisher)
        async with served.capsules as capsules:
            await capsules.attach(capsule)
            assert served.networks == {}
            assert not capsules.are_needed

    play(story)
