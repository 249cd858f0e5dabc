"""The host's network: resolves names and opens connections.

No policy is applied here: the caller has checked the name before it is looked up, and the address
before it is dialled.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from atoll.daemon.egress.upstream_proxy import Upstream, find_upstream
from atoll.daemon.streams import Stream
from atoll.drivers.network import http1
from atoll.host.local_addresses import own_addresses
from atoll.model.egress import Address, Destination, canonical_address

DIAL_S = 10.0
_ANSWER_S = 30.0
"""For the owner's upstream proxy, which may take longer."""
_LOOKUPS = 32
KEPT_S = 5.0
"""For which the addresses of a name are kept, and are not looked up again."""
_MOST_KEPT = 1024
_OWN_S = 2.0

Lookup = Callable[[str], list[Address]]


class UnreachableError(OSError):
    """The destination does not answer. The text may be shown inside."""


def look_up(name: str) -> list[Address]:
    """As every program on this host does it. OSError when there is no such name."""
    found: dict[Address, None] = {}
    for _, _, _, _, sockaddr in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM):
        # An address with a zone is link-local, and none that could be dialled.
        address = canonical_address(str(sockaddr[0]))
        if address is not None:
            found[address] = None
    return list(found)


class HostNetwork:
    """One for all capsules of a daemon."""

    def __init__(
        self,
        *,
        upstream: Upstream | None = None,
        lookup: Lookup = look_up,
        own: Callable[[], frozenset[Address]] = own_addresses,
    ) -> None:
        self.upstream = upstream
        self._lookup = lookup
        self._list_own = own
        self._own: frozenset[Address] = frozenset()
        self._own_until = 0.0
        self._pool = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="lookup")
        self._kept: dict[str, tuple[float, list[Address]]] = {}
        self._asked: dict[str, asyncio.Future[list[Address]]] = {}

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> HostNetwork:
        """With the proxy that the owner's environment names."""
        return cls(upstream=find_upstream(environment))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def own(self) -> frozenset[Address]:
        """The addresses of this machine, cached for a moment. OSError when they cannot be read."""
        now = time.monotonic()
        if now >= self._own_until:
            self._own = self._list_own()
            self._own_until = now + _OWN_S
        return self._own

    async def resolve(self, name: str) -> list[Address]:
        """The addresses of a name. OSError when it has none.

        May take as long as the host's resolver does. Answers are kept for a few seconds, and a
        name that is being looked up is not looked up twice.
        """
        until, found = self._kept.get(name, (0.0, []))
        if time.monotonic() < until:
            return found
        asked = self._asked.get(name)
        if asked is None:
            loop = asyncio.get_running_loop()
            asked = asyncio.ensure_future(loop.run_in_executor(self._pool, self._lookup, name))
            self._asked[name] = asked
            asked.add_done_callback(lambda done: self._keep(name, done))
        return await asyncio.shield(asked)

    def _keep(self, name: str, done: asyncio.Future[list[Address]]) -> None:
        del self._asked[name]
        if done.cancelled() or done.exception() is not None:
            return
        self._kept.pop(name, None)
        self._kept[name] = time.monotonic() + KEPT_S, done.result()
        while len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]

    async def dial(self, address: Address, port: int) -> socket.socket:
        """A connection to just this address. UnreachableError when there is none in time."""
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            async with asyncio.timeout(DIAL_S):
                await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
        except TimeoutError:
            sock.close()
            raise UnreachableError("does not answer") from None
        except OSError as error:
            sock.close()
            # The event loop replaces the kernel's message.
            raise UnreachableError(os.strerror(error.errno or errno.EIO).lower()) from None
        except BaseException:
            sock.close()
            raise
        return sock

    def find_upstream(self, wanted: Destination) -> Upstream | None:
        """The owner's upstream proxy, if it serves this destination."""
        is_served = self.upstream is not None and self.upstream.serves(wanted)
        return self.upstream if is_served else None

    async def dial_upstream(self, upstream: Upstream) -> socket.socket:
        """A connection to the owner's upstream proxy."""
        if not upstream.usable:
            raise UnreachableError("the owner's upstream proxy has an unsupported scheme")
        try:
            address = canonical_address(upstream.host)
            found = [address] if address else await self.resolve(upstream.host)
        except OSError:
            raise UnreachableError("the owner's upstream proxy does not resolve") from None
        for address in found:
            try:
                return await self.dial(address, upstream.port)
            except UnreachableError:
                continue
        raise UnreachableError("the owner's upstream proxy cannot be reached")

    async def tunnel(self, upstream: Upstream, wanted: Destination) -> Stream:
        """A connection through the owner's upstream proxy. UnreachableError when there is none."""
        stream = Stream(await self.dial_upstream(upstream))
        place = wanted.text.encode()
        fields = [(b"Host", place), *upstream.fields]
        try:
            await stream.send(http1.render(b"CONNECT " + place + b" HTTP/1.1", fields))
            status = http1.parse_response(await stream.read_head(_ANSWER_S)).status
        except (EOFError, OSError, ValueError):
            stream.sock.close()
            raise UnreachableError("the owner's upstream proxy does not answer") from None
        except BaseException:
            stream.sock.close()
            raise
        if status != 200:
            stream.sock.close()
            raise UnreachableError(f"the owner's upstream proxy refused with {status}")
        return stream
