"""The host's side: names are looked up once, addresses are its own or not."""

from __future__ import annotations

import asyncio
import socket
import threading
from ipaddress import ip_address

import pytest

from atoll.daemon.egress.host_network import HostNetwork, UnreachableError, look_up
from atoll.host.local_addresses import own_addresses

ADDRESS = ip_address("93.184.216.34")


def test_name_is_looked_up_once_at_a_time_and_kept():
    asked = []
    goes_on = threading.Event()

    def lookup(name):
        asked.append(name)
        goes_on.wait(10)
        if name == "bad.example":
            raise socket.gaierror("no such name")
        return [ADDRESS]

    async def run():
        world = HostNetwork(lookup=lookup)
        several = [asyncio.create_task(world.resolve("a.example")) for _ in range(10)]
        await asyncio.sleep(0)
        several[0].cancel()
        goes_on.set()
        results = await asyncio.gather(*several, return_exceptions=True)
        assert results[1:] == [[ADDRESS]] * 9
        assert await world.resolve("a.example") == [ADDRESS]
        for _ in range(2):
            with pytest.raises(OSError, match="no such name"):
                await world.resolve("bad.example")
        world.close()

    asyncio.run(run())
    assert asked == ["a.example", "bad.example", "bad.example"]


def test_own_addresses_are_read_anew():
    rows = iter([frozenset(), frozenset([ADDRESS])])

    world = HostNetwork(own=lambda: next(rows))
    assert world.own() == world.own() == frozenset()
    world._own_until = 0
    assert world.own() == {ADDRESS}
    world.close()


def test_own_addresses_of_this_machine():
    found = own_addresses()
    assert ip_address("127.0.0.1") in found
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("198.51.100.1", 9))
        except OSError:
            return
        assert ip_address(sock.getsockname()[0]) in found


def test_dial_tells_why_not():
    async def run():
        world = HostNetwork()
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            (await world.dial(ip_address("127.0.0.1"), port)).close()
        with pytest.raises(UnreachableError, match="connection refused"):
            await world.dial(ip_address("127.0.0.1"), port)
        world.close()

    asyncio.run(run())


def test_look_up_as_the_host_does():
    assert ip_address("127.0.0.1") in look_up("localhost")
