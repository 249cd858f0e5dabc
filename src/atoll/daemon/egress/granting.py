"""Ports of the owner's loopback that a capsule was granted (`host:PORT`), on its own loopback."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Sequence

from atoll.daemon.carrying import carry
from atoll.daemon.egress.exchanges import IDLE_S
from atoll.daemon.egress.journal import Journal
from atoll.daemon.egress.reaching import Reached, Refusal, Way
from atoll.daemon.egress.receiving import Reception
from atoll.daemon.egress.shares import Share
from atoll.daemon.egress.streams import Stream
from atoll.daemon.egress.world import UnreachableError, World
from atoll.model.egress import Address, Destination, Policy

_LOOPBACKS: tuple[Address, ...] = (
    ipaddress.IPv4Address("127.0.0.1"),
    ipaddress.IPv6Address("::1"),
)
_HOST = "host"


class Grant:
    """One port, as long as the policy grants it."""

    def __init__(
        self,
        port: int,
        *,
        capsule: str,
        policy: Callable[[], Policy],
        journal: Journal,
        world: World,
        share: Share,
    ) -> None:
        self._wanted = Destination(_HOST, port)
        self._world = world
        self._way = Way(capsule=capsule, policy=policy, journal=journal, world=world, share=share)
        self._reception = Reception(share, when_full=self._note_full)

    async def serve(self, listeners: Sequence[socket.socket]) -> None:
        """Until cancelled; then all connections have ended. The listeners, sockets of the
        capsule's network, non-blocking, are left to the caller.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for listener in listeners:
                    group.create_task(self._reception.receive(listener, self._carry))
        finally:
            await self._reception.close()

    async def _carry(self, client: Stream) -> None:
        port = self._wanted.port
        if port not in self._way.policy().host_ports():
            why = f"port {port} of the host is not granted"
            self._way.note_refusal("host", Refusal.because(self._wanted, why))
            client.reset()
            return
        try:
            address, sock = await self._dial()
        except UnreachableError as error:
            self._way.note_failure("host", self._wanted, error)
            client.reset()
            return
        reached = Reached(Stream(sock), self._wanted.text, str(address))
        with self._way.noted("host", self._wanted, reached) as counts, contextlib.closing(sock):
            await carry(client.sock, sock, idle_s=IDLE_S, counts=counts)

    async def _dial(self) -> tuple[Address, socket.socket]:
        """Whichever of the two loopbacks answers. UnreachableError when none does."""
        failure = UnreachableError("nothing listens there")
        for address in _LOOPBACKS:
            try:
                return address, await self._world.dial(address, self._wanted.port)
            except UnreachableError as error:
                failure = error
        raise failure

    def _note_full(self) -> None:
        why = "too many connections at once"
        self._way.note_refusal("host", Refusal.because(self._wanted, why))
