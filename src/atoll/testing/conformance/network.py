"""What the network of every capsule must do; see `atoll.drivers.contracts.CapsuleNetwork`."""
# ruff: noqa: S101 - a test method says what must hold with `assert`

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager

from atoll.drivers.contracts import CapsuleNetwork, NetworkGone, NetworkSilent
from atoll.testing.conformance.witness import refused

PORT = 3000
_ANSWER_S = 10.0


class NetworkSuite:
    """A subclass makes a network, and ends it as the end of its capsule does."""

    def network(self) -> CapsuleNetwork:
        """The network of one capsule, not connected. Called again, it is that of the same one."""
        raise NotImplementedError

    def end(self, network: CapsuleNetwork) -> None:
        raise NotImplementedError

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[CapsuleNetwork]:
        network = self.network()
        await network.connect()
        try:
            yield network
        finally:
            network.close()

    def perform(self, story: Callable[[CapsuleNetwork], Awaitable[None]]) -> None:
        """Runs a test on a connected network."""

        async def run() -> None:
            async with self.connected() as network:
                await story(network)

        asyncio.run(run())

    def test_what_listens_is_listed_and_can_be_dialled(self) -> None:
        async def story(network: CapsuleNetwork) -> None:
            with ExitStack() as opened:
                made = await network.listen(opened, PORT)
                assert made
                assert all(not sock.getblocking() and is_listening(sock) for sock in made)
                assert network.may_have_changed()
                assert PORT in await ports_of(network)
                with await network.dial(PORT) as dialled:
                    assert not dialled.getblocking()
            assert all(sock.fileno() == -1 for sock in made)
            assert network.may_have_changed()
            assert PORT not in await ports_of(network)

        self.perform(story)

    def test_what_is_dialled_reaches_who_listens(self) -> None:
        async def story(network: CapsuleNetwork) -> None:
            loop = asyncio.get_running_loop()
            with ExitStack() as opened:
                [first, *_] = await network.listen(opened, PORT)
                with await network.dial(PORT) as dialled:
                    accepted, _ = await asyncio.wait_for(loop.sock_accept(first), _ANSWER_S)
                    with accepted:
                        for ours, theirs in ((dialled, accepted), (accepted, dialled)):
                            await loop.sock_sendall(ours, b"hello")
                            said = await asyncio.wait_for(loop.sock_recv(theirs, 100), _ANSWER_S)
                            assert said == b"hello"

        self.perform(story)

    def test_nothing_accepts(self) -> None:
        async def story(network: CapsuleNetwork) -> None:
            for _ in range(2):
                with refused(ConnectionError):
                    await network.dial(PORT)

        self.perform(story)

    def test_port_is_taken_once(self) -> None:
        async def story(network: CapsuleNetwork) -> None:
            with ExitStack() as opened:
                await network.listen(opened, PORT)
                with refused(OSError):
                    await network.listen(opened, PORT)
                await network.listen(opened, PORT + 1)
            with ExitStack() as opened:
                await network.listen(opened, PORT)

        self.perform(story)

    def test_egress_sockets_are_open_until_they_are_closed(self) -> None:
        async def story(network: CapsuleNetwork) -> None:
            for _ in range(2):
                with ExitStack() as opened:
                    made = await network.open_egress(opened)
                    streams = (made.proxy, *made.transparent, *made.dns_streams)
                    every = (*streams, *made.dns)
                    assert all(not sock.getblocking() for sock in every)
                    assert all(is_listening(sock) for sock in streams)
                    assert made.transparent
                    assert made.dns_streams
                    assert {sock.type for sock in made.dns} == {socket.SOCK_DGRAM}
                    assert all(sock.getsockname()[1] for sock in every)
                assert all(sock.fileno() == -1 for sock in every)

        self.perform(story)

    def test_egress_and_ports_inside_do_not_meet(self) -> None:
        async def story(network: CapsuleNetwork) -> None:
            with ExitStack() as opened:
                await network.open_egress(opened)
                await network.listen(opened, PORT)
                assert PORT in await ports_of(network)

        self.perform(story)

    def test_closing_leaves_the_network_as_it_is(self) -> None:
        """The daemon may connect again, and what listens inside goes on."""

        async def story(network: CapsuleNetwork) -> None:
            with ExitStack() as opened:
                await network.listen(opened, PORT)
                network.close()
                async with self.connected() as again:
                    assert PORT in await ports_of(again)

        self.perform(story)

    def test_end_is_noticed(self) -> None:
        async def story(network: CapsuleNetwork) -> None:
            waiting = asyncio.create_task(network.wait_closed())
            for _ in range(5):
                await network.listening()
                await asyncio.sleep(0)
            assert not waiting.done()
            self.end(network)
            await asyncio.wait_for(waiting, _ANSWER_S)
            await asyncio.wait_for(network.wait_closed(), _ANSWER_S)

        self.perform(story)

    def test_network_that_has_ended_is_gone(self) -> None:
        async def story(network: CapsuleNetwork) -> None:
            await self.require_gone(network)

        self.perform(story)

    def test_network_that_was_in_use_is_gone_when_it_ends(self) -> None:
        """Whatever is kept of it to answer faster."""

        async def story(network: CapsuleNetwork) -> None:
            with ExitStack() as opened:
                await network.open_egress(opened)
                await network.listen(opened, PORT)
                await network.listening()
                for _ in range(2):
                    (await network.dial(PORT)).close()
            await self.require_gone(network)

        self.perform(story)

    async def require_gone(self, network: CapsuleNetwork) -> None:
        self.end(network)
        await asyncio.wait_for(network.wait_closed(), _ANSWER_S)
        with ExitStack() as opened:
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "listening": network.listening,
                "dial": lambda: network.dial(PORT),
                "listen": lambda: network.listen(opened, PORT),
                "open_egress": lambda: network.open_egress(opened),
            }
            for name, call in calls.items():
                assert await is_gone(call), name
        assert await is_gone(self.network().connect), "connect"


async def ports_of(network: CapsuleNetwork) -> set[int]:
    return {place.port for place in (await network.listening()).places}


async def is_gone(call: Callable[[], Awaitable[object]]) -> bool:
    """Whether the network says that it has ended, not only that it does not answer."""
    try:
        await call()
    except NetworkGone as error:
        return not isinstance(error, NetworkSilent)
    except OSError:
        return False
    return False


def is_listening(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
