"""The egress of a capsule: accepts what leaves it, and lets pass what the policy allows.

It listens on sockets in the capsule's own network. While they are not served, nothing leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from atoll.daemon.acceptor import Acceptor, ConnectionTasks
from atoll.daemon.egress import dns_server
from atoll.daemon.egress.dialer import CredentialBroker, Dialer, EgressConnection, Refusal
from atoll.daemon.egress.egress_log_writer import Journal
from atoll.daemon.egress.host_network import HostNetwork, UnreachableError
from atoll.daemon.egress.http_requests import IDLE_S
from atoll.daemon.egress.limits import EgressShare
from atoll.daemon.egress.proxy import serve_proxy
from atoll.daemon.egress.synthetic_addresses import SyntheticAddresses
from atoll.daemon.egress.transparent import serve_transparent
from atoll.daemon.relay import relay
from atoll.daemon.streams import Stream
from atoll.drivers.contracts import EgressSockets
from atoll.model.egress import Address, Destination, Policy

Service = Callable[[Stream], Awaitable[None]]


class EgressAcceptor:
    """Serves the connections of one capsule. Beyond its share, new ones are closed at once."""

    def __init__(self, share: EgressShare, *, when_full: Callable[[], None]) -> None:
        self._share = share
        self._when_full = when_full
        self._tasks = ConnectionTasks()

    async def receive(self, listener: socket.socket, service: Service) -> None:
        """Runs until cancelled, then closes the listener. OSError when the listener fails."""
        acceptor = Acceptor(
            [listener], partial(self._begin, service), reserve=self._share.turns.reserve
        )
        try:
            await acceptor.failed
        finally:
            acceptor.close()

    async def close(self) -> None:
        """Ends all connections."""
        await self._tasks.close()

    def _begin(self, service: Service, sock: socket.socket) -> None:
        if self._share.is_full:
            sock.close()
            self._when_full()
        else:
            self._share.enter()
            self._tasks.start(_serve(sock, service), self._share.leave)


async def _serve(sock: socket.socket, service: Service) -> None:
    client = Stream(sock)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await service(client)
        await client.finish()
    except OSError:
        # The client closed the connection, or took too long.
        pass
    finally:
        sock.close()


class Egress:
    """Of one capsule."""

    def __init__(  # noqa: PLR0913 - the parts of a capsule's network
        self,
        *,
        capsule: str,
        policy: Callable[[], Policy],
        journal: Journal,
        host_network: HostNetwork,
        share: EgressShare,
        directory: Path,
        broker: CredentialBroker | None = None,
    ) -> None:
        """`policy` is called for each decision, so that a change takes effect at once. `directory`
        stores the synthetic addresses; only the owner can write to it. OSError when they cannot be
        read. The sockets have to be open already, so that no other process uses the same file.
        """
        self._dialer = Dialer(
            capsule=capsule,
            policy=policy,
            journal=journal,
            host_network=host_network,
            share=share,
            broker=broker,
        )
        self._synthetic = SyntheticAddresses(directory)
        self._acceptor = EgressAcceptor(share, when_full=self._note_full)

    async def serve(self, sockets: EgressSockets) -> None:
        """Until cancelled; then all connections have ended. The caller closes the sockets.

        ExceptionGroup of OSError when a socket is broken.
        """
        streams: list[tuple[socket.socket, Service]] = [(sockets.proxy, self._proxy)]
        streams += [(sock, self._transparent) for sock in sockets.transparent]
        streams += [(sock, self._dns) for sock in sockets.dns_streams]
        try:
            async with asyncio.TaskGroup() as group:
                for sock, service in streams:
                    group.create_task(self._acceptor.receive(sock, service))
                for sock in sockets.dns:
                    group.create_task(
                        dns_server.serve_datagrams(self._dialer, self._synthetic, sock)
                    )
        finally:
            await self._acceptor.close()

    async def _proxy(self, client: Stream) -> None:
        await serve_proxy(self._dialer, client)

    async def _transparent(self, client: Stream) -> None:
        await serve_transparent(self._dialer, self._synthetic, client)

    async def _dns(self, client: Stream) -> None:
        await dns_server.serve_stream(self._dialer, self._synthetic, client)

    def _note_full(self) -> None:
        why = "too many connections at once"
        self._dialer.journal.note(via="connect", place="(any)", port=0, allowed=False, why=why)


_LOOPBACKS: tuple[Address, ...] = (
    ipaddress.IPv4Address("127.0.0.1"),
    ipaddress.IPv6Address("::1"),
)
_HOST = "host"


class HostPortForward:
    """One port, as long as the policy grants it."""

    def __init__(
        self,
        port: int,
        *,
        capsule: str,
        policy: Callable[[], Policy],
        journal: Journal,
        host_network: HostNetwork,
        share: EgressShare,
    ) -> None:
        self._wanted = Destination(_HOST, port)
        self._host_network = host_network
        self._dialer = Dialer(
            capsule=capsule, policy=policy, journal=journal, host_network=host_network, share=share
        )
        self._acceptor = EgressAcceptor(share, when_full=self._note_full)

    async def serve(self, listeners: Sequence[socket.socket]) -> None:
        """Until cancelled; then all connections have ended. The listeners, sockets of the
        capsule's network, non-blocking, are left to the caller.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for listener in listeners:
                    group.create_task(self._acceptor.receive(listener, self._carry))
        finally:
            await self._acceptor.close()

    async def _carry(self, client: Stream) -> None:
        port = self._wanted.port
        if port not in self._dialer.policy().host_ports():
            why = f"port {port} of the host is not granted"
            self._dialer.note_refusal("host", Refusal.because(self._wanted, why))
            client.reset()
            return
        try:
            address, sock = await self._dial()
        except UnreachableError as error:
            self._dialer.note_failure("host", self._wanted, error)
            client.reset()
            return
        connection = EgressConnection(Stream(sock), self._wanted.text, str(address))
        with (
            self._dialer.noted("host", self._wanted, connection) as counts,
            contextlib.closing(sock),
        ):
            await relay(client.sock, sock, idle_s=IDLE_S, counts=counts)

    async def _dial(self) -> tuple[Address, socket.socket]:
        """Whichever of the two loopbacks answers. UnreachableError when none does."""
        failure = UnreachableError("nothing listens there")
        for address in _LOOPBACKS:
            try:
                return address, await self._host_network.dial(address, self._wanted.port)
            except UnreachableError as error:
                failure = error
        raise failure

    def _note_full(self) -> None:
        why = "too many connections at once"
        self._dialer.note_refusal("host", Refusal.because(self._wanted, why))
