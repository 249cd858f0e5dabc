"""What the network of every capsule must do; see `atoll.drivers.contracts.CapsuleNetwork`."""
# ruff: noqa: S101 - a test method says what must hold with `assert`

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from atoll.drivers.contracts import CapsuleNetwork, NetworkGone

PORT = 3000


class NetworkSuite:
    """A subclass makes a network, and ends it as the end of its capsule does."""

    def network(self) -> CapsuleNetwork:
        raise NotImplementedError

    def end(self, network: CapsuleNetwork) -> None:
        raise NotImplementedError

    def test_what_listens_is_listed_and_can_be_dialled(self) -> None:
        async def run() -> None:
            network = self.network()
            await network.connect()
            with ExitStack() as opened:
                made = await network.listen(opened, PORT)
                assert all(not sock.getblocking() for sock in made)
                assert network.may_have_changed()
                assert PORT in {place.port for place in (await network.listening()).places}
                with await network.dial(PORT) as dialled:
                    assert not dialled.getblocking()
            assert PORT not in {place.port for place in (await network.listening()).places}
            network.close()

        asyncio.run(run())

    def test_nothing_accepts(self) -> None:
        async def run() -> None:
            network = self.network()
            await network.connect()
            try:
                await network.dial(PORT)
            except ConnectionError:
                return
            raise AssertionError("connected to a port on which nothing listens")

        asyncio.run(run())

    def test_port_is_taken_once(self) -> None:
        async def run() -> None:
            network = self.network()
            await network.connect()
            with ExitStack() as opened:
                await network.listen(opened, PORT)
                try:
                    await network.listen(opened, PORT)
                except OSError:
                    return
            raise AssertionError("two sockets listen on one port")

        asyncio.run(run())

    def test_egress_sockets_do_not_block(self) -> None:
        async def run() -> None:
            network = self.network()
            await network.connect()
            with ExitStack() as opened:
                made = await network.open_egress(opened)
                every = (made.proxy, *made.transparent, *made.dns, *made.dns_streams)
                assert all(not sock.getblocking() for sock in every)

        asyncio.run(run())

    def test_end_is_noticed(self) -> None:
        async def run() -> None:
            network = self.network()
            await network.connect()
            self.end(network)
            await asyncio.wait_for(network.wait_closed(), 10)
            try:
                await network.listening()
            except NetworkGone:
                return
            raise AssertionError("a network that has ended still answers")

        asyncio.run(run())
