"""Connects to a destination in canonical form, or explains why it does not.

The name is checked before it is looked up, each address before it is used, and the connection goes
to exactly the address that was checked. Every attempt is logged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from atoll.daemon.egress.egress_log_writer import Journal
from atoll.daemon.egress.host_network import HostNetwork, UnreachableError
from atoll.daemon.egress.limits import EgressShare, LimitError
from atoll.daemon.egress.upstream_proxy import Upstream
from atoll.daemon.relay import Counts
from atoll.daemon.streams import Stream
from atoll.drivers.network.http1 import Request
from atoll.model.egress import (
    WEB_PORTS,
    Address,
    Destination,
    Policy,
    Verdict,
    canonical_address,
)

_LOOKUPS = 4
"""Concurrent lookups per capsule: those that never answer must not delay others."""
_LOOKUP_S = 15.0
_LOOKUPS_WAITING = 256


class Refusal(Exception):  # noqa: N818 - an answer, not an error
    """The policy refuses the destination."""

    def __init__(
        self, wanted: Destination, verdict: Verdict, *, shown: Verdict | None = None
    ) -> None:
        """`verdict` is for the owner's log, `shown` for the client inside."""
        super().__init__(verdict.why)
        self.wanted = wanted
        self.verdict = verdict
        self.shown = verdict if shown is None else shown

    @classmethod
    def because(cls, wanted: Destination, why: str) -> Refusal:
        return cls(wanted, Verdict(allowed=False, why=why))


def _show_address(wanted: Destination) -> Verdict:
    """The same for all addresses, so that those of the host are not revealed inside."""
    why = f"the address {wanted.place} is not allowed"
    return Verdict(allowed=False, why=why, ask=wanted.text)


class EgressConnection(NamedTuple):
    """A connection, and by which rule and to which address it was made."""

    stream: Stream
    why: str
    address: str | None = None
    upstream: Upstream | None = None
    """The proxy that plain HTTP requests are sent through."""


class CredentialBroker(Protocol):
    """Serves the hosts for which the capsule has brokered secrets."""

    def serves(self, name: str) -> bool:
        """Whether TLS to this name ends here. Asked for each connection."""
        ...

    async def serve_tls(self, dialer: Dialer, client: Stream, name: str) -> None:
        """A connection whose ClientHello, still in the buffer, names a host that is served."""
        ...

    async def serve_plain(self, dialer: Dialer, client: Stream, request: Request) -> bool:
        """A request to the proxy itself. Returns whether the client may send another."""
        ...


class Dialer:
    """Makes and logs the connections that leave one capsule."""

    def __init__(
        self,
        *,
        capsule: str,
        policy: Callable[[], Policy],
        journal: Journal,
        host_network: HostNetwork,
        share: EgressShare,
        broker: CredentialBroker | None = None,
    ) -> None:
        self.capsule = capsule
        self.policy = policy
        self.broker = broker
        self.journal = journal
        self.share = share
        self._host_network = host_network
        self._lookups = asyncio.Semaphore(_LOOKUPS)
        self._asking: set[asyncio.Task[list[Address]]] = set()

    def find_broker(self, place: str | Address | None) -> CredentialBroker | None:
        """The broker, if it serves this host."""
        is_served = isinstance(place, str) and self.broker and self.broker.serves(place)
        return self.broker if is_served else None

    def require(self, wanted: Destination) -> Verdict:
        """Raises Refusal when the requested destination is not allowed."""
        policy = self.policy()
        verdict = policy.judge(wanted)
        if not verdict.allowed:
            raise Refusal(wanted, verdict)
        if not isinstance(wanted.place, str):
            by_address = policy.judge_address(wanted.place, wanted.port, self._host_network.own())
            if not by_address.allowed:
                raise Refusal(wanted, by_address, shown=_show_address(wanted))
        return verdict

    def _count_lookup(self, wanted: Destination, name: str) -> None:
        """Raises Refusal when too many names were looked up. It is logged under the rule, so that a
        flood of names is one line.
        """
        try:
            self.share.names.require_lookup(self.policy(), name)
        except LimitError as error:
            ask = name if wanted.port in WEB_PORTS else wanted.text
            verdict = Verdict(allowed=False, why=str(error), ask=ask)
            raise Refusal(Destination(error.rule, wanted.port), verdict) from None

    async def connect(self, wanted: Destination, *, plainly: bool = False) -> EgressConnection:
        """Raises Refusal, or UnreachableError.

        `plainly`: for requests in plain HTTP, which the owner's proxy accepts unchanged.
        """
        verdict = self.require(wanted)
        place = wanted.place
        if isinstance(place, str):
            self._count_lookup(wanted, place)
        upstream = self._host_network.find_upstream(wanted)
        if upstream is None:
            found = await self._look_up(place) if isinstance(place, str) else [place]
            return await self._dial(wanted, found, verdict.why)
        if plainly:
            stream = Stream(await self._host_network.dial_upstream(upstream))
            return EgressConnection(stream, verdict.why, upstream=upstream)
        return EgressConnection(await self._host_network.tunnel(upstream, wanted), verdict.why)

    async def connect_for_owner(self, host: str, port: int) -> EgressConnection:
        """To a place that the owner has named, which the policy of the capsule does not concern.
        Raises UnreachableError.
        """
        address = canonical_address(host)
        found = [address] if address is not None else await self._look_up(host)
        failure = UnreachableError("the name does not resolve")
        for each in found:
            try:
                sock = await self._host_network.dial(each, port)
            except UnreachableError as error:
                failure = error
                continue
            return EgressConnection(Stream(sock), "upstream", str(each))
        raise failure

    async def _look_up(self, name: str) -> list[Address]:
        if len(self._asking) >= _LOOKUPS_WAITING:
            raise UnreachableError("too many names are being looked up")
        # It continues after the timeout, and keeps its place in the queue until it is done.
        task = asyncio.create_task(self._look_up_in_turn(name))
        self._asking.add(task)
        task.add_done_callback(self._forget)
        try:
            async with asyncio.timeout(_LOOKUP_S):
                return await asyncio.shield(task)
        except OSError:
            raise UnreachableError("the name does not resolve") from None

    async def _look_up_in_turn(self, name: str) -> list[Address]:
        async with self._lookups:
            return await self._host_network.resolve(name)

    def _forget(self, task: asyncio.Task[list[Address]]) -> None:
        self._asking.discard(task)
        if not task.cancelled():
            # A task that still waits for it gets the exception itself.
            task.exception()

    async def _dial(self, wanted: Destination, found: list[Address], why: str) -> EgressConnection:
        policy, own = self.policy(), self._host_network.own()
        failure: Refusal | UnreachableError = UnreachableError("the name does not resolve")
        for address in found:
            verdict = policy.judge_address(address, wanted.port, own)
            if not verdict.allowed:
                failure = Refusal(wanted, verdict, shown=self._hide_address(wanted))
                continue
            try:
                sock = await self._host_network.dial(address, wanted.port)
            except UnreachableError as error:
                failure = error
                continue
            return EgressConnection(Stream(sock), why, str(address))
        raise failure

    def _hide_address(self, wanted: Destination) -> Verdict:
        """Private addresses of the host are not revealed inside, so the reason for the refusal is
        left out.
        """
        if not isinstance(wanted.place, str):
            return _show_address(wanted)
        why = f"`{wanted.place}` resolves to an address that is not allowed"
        return Verdict(
            allowed=False, why=f"{why}\nthe owner can see which: atoll network {self.capsule}"
        )

    def note_refusal(self, via: str, refusal: Refusal) -> None:
        place, port = str(refusal.wanted.place), refusal.wanted.port
        # A flood of names under a wildcard is one line, whichever of them is asked for.
        why, ask = refusal.verdict.why, "" if place.startswith("*") else refusal.verdict.ask
        self.journal.note(via=via, place=place, port=port, allowed=False, why=why, ask=ask)

    def note_failure(self, via: str, wanted: Destination, error: OSError) -> None:
        """Logs an attempt that was allowed and failed."""
        self.journal.note(
            via=via,
            place=str(wanted.place),
            port=wanted.port,
            allowed=True,
            why=str(error),
            took_s=0.0,
            failed=True,
        )

    @contextmanager
    def noted(
        self, via: str, wanted: Destination, connection: EgressConnection
    ) -> Iterator[Counts]:
        """Writes down that a connection began, and what it carried when it ended."""
        counts, began = Counts(), time.monotonic()
        place = str(wanted.place)

        def note(begun: int = 0) -> int:
            return self.journal.note(
                via=via,
                place=place,
                port=wanted.port,
                allowed=True,
                why=connection.why,
                address=connection.address,
                sent=counts.sent,
                received=counts.received,
                took_s=time.monotonic() - began if begun else None,
                begun=begun,
            )

        number = note()
        try:
            yield counts
        finally:
            note(number)
