"""A capsule's way out: whatever leaves it comes through these doors, and is judged.

The doors are sockets of the capsule's own network. When nobody serves them, nothing leaves.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from atoll.daemon.egress import resolving
from atoll.daemon.egress.caught import serve_caught
from atoll.daemon.egress.journal import Journal
from atoll.daemon.egress.proxying import serve_proxy
from atoll.daemon.egress.reaching import Way
from atoll.daemon.egress.receiving import Reception, Service
from atoll.daemon.egress.shares import Share
from atoll.daemon.egress.standins import StandIns
from atoll.daemon.egress.streams import Stream
from atoll.daemon.egress.world import World
from atoll.model.egress import Policy


class Doors(NamedTuple):
    """Sockets made in the capsule's network, bound and listening, non-blocking."""

    proxy: socket.socket
    caught: tuple[socket.socket, ...]
    """For IPv4 and IPv6."""
    names: tuple[socket.socket, ...]
    """For datagrams."""
    names_streams: tuple[socket.socket, ...]


class Egress:
    """Of one capsule."""

    def __init__(
        self,
        *,
        capsule: str,
        policy: Callable[[], Policy],
        journal: Journal,
        world: World,
        share: Share,
        directory: Path,
    ) -> None:
        """`policy` is asked anew for each decision, so that a change counts at once. `directory`
        keeps the stand-in addresses; only the owner can write to it. OSError when they cannot be
        read. The doors have to be open already, so that no other process uses the same file.
        """
        self._way = Way(capsule=capsule, policy=policy, journal=journal, world=world, share=share)
        self._stand_ins = StandIns(directory)
        self._reception = Reception(share, when_full=self._note_full)

    async def serve(self, doors: Doors) -> None:
        """Until cancelled; then all connections have ended. The doors are left to the caller.

        ExceptionGroup of OSError when a door is broken.
        """
        streams: list[tuple[socket.socket, Service]] = [(doors.proxy, self._proxy)]
        streams += [(door, self._caught) for door in doors.caught]
        streams += [(door, self._names) for door in doors.names_streams]
        try:
            async with asyncio.TaskGroup() as group:
                for door, service in streams:
                    group.create_task(self._reception.receive(door, service))
                for door in doors.names:
                    group.create_task(resolving.serve_datagrams(self._way, self._stand_ins, door))
        finally:
            await self._reception.close()

    async def _proxy(self, client: Stream) -> None:
        await serve_proxy(self._way, client)

    async def _caught(self, client: Stream) -> None:
        await serve_caught(self._way, self._stand_ins, client)

    async def _names(self, client: Stream) -> None:
        await resolving.serve_stream(self._way, self._stand_ins, client)

    def _note_full(self) -> None:
        why = "too many connections at once"
        self._way.journal.note(via="connect", place="(any)", port=0, allowed=False, why=why)
