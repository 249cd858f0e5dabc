"""What the broker tells of model traffic, and whom it asks before it forwards a request.

`atoll.daemon.broker.metering` implements these protocols; capsules without a model login have a
meter that counts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from atoll.drivers.network.http1 import Field


class TrafficTap(Protocol):
    """Observes one exchange. Called in order: `request_data`, `response`, `data` or
    `frames_from_server` any number of times, `end` once; `end` may come without the others, and
    `request_data` as long as the request is sent.
    """

    def request_data(self, data: bytes) -> None:
        """A piece of the request's body that is about to be sent to the server. The first, which
        may be empty, comes before the head is sent: from then on, the request may cost something.
        """
        ...

    def response(self, status: int, headers: Sequence[Field]) -> None:
        """The head of the response."""
        ...

    def data(self, data: bytes) -> None:
        """A piece of the response's body, without transfer and content codings."""
        ...

    def frames_from_server(self, data: bytes) -> None:
        """Bytes of a WebSocket connection after its handshake, without extensions."""
        ...

    def quota_of_frames(self) -> float | None:
        """After `frames_from_server`: the seconds after which the connection is closed without
        passing these bytes on, because they say that a quota is used up; the client connects and
        asks again. None passes them on.
        """
        ...

    async def frames_from_client(self, data: bytes) -> None:
        """The other direction, before they are forwarded: returns when they may be, as `admit`
        does, because one WebSocket carries many requests, which count from then on.
        """
        ...

    def end(self, error: str = "") -> None:
        """The exchange is over; `error` says why it failed."""
        ...

    async def quota(self) -> float | None:
        """After a `response` with status 429 and its `data`: the seconds after which the same
        request is to be sent again; None passes the response on.
        """
        ...


class TrafficMeter(Protocol):
    """Counts the model traffic of one capsule."""

    def counts(self, method: str, path: str) -> bool:
        """Whether such a request is model traffic: it is admitted and observed, its body is
        buffered, and its response comes without content coding.
        """
        ...

    async def admit(self) -> None:
        """Returns when a model request may be forwarded; it is cancelled when the client is gone
        or the grant is revoked.
        """
        ...

    def observe(self, method: str, path: str, headers: Sequence[Field], body: bytes) -> TrafficTap:
        """Begins an exchange. `path` has no query; `body` is the beginning of the request's body
        (`PREFIX_BYTES`), or all of it, which names the model and
        the conversation.
        """
        ...

    def answered(self, status: int | None, trouble: str) -> None:
        """The status of the last answer of a model's server, or why there was none."""
        ...


PREFIX_BYTES = 256 << 10
CLIENT_GONE = "the client ended the request"
"""The error of an exchange without a fault."""


class NoTap:
    """Observes nothing."""

    def request_data(self, data: bytes) -> None:
        pass

    def response(self, status: int, headers: Sequence[Field]) -> None:
        pass

    def data(self, data: bytes) -> None:
        pass

    def frames_from_server(self, data: bytes) -> None:
        pass

    def end(self, error: str = "") -> None:
        pass

    def quota_of_frames(self) -> float | None:
        return None

    async def frames_from_client(self, data: bytes) -> None:
        pass

    async def quota(self) -> float | None:
        return None


class NoMeter:
    """Of a capsule without model traffic: it counts nothing."""

    def counts(self, method: str, path: str) -> bool:
        del method, path
        return False

    async def admit(self) -> None:
        return

    def observe(self, method: str, path: str, headers: Sequence[Field], body: bytes) -> TrafficTap:
        del method, path, headers, body
        return NoTap()

    def answered(self, status: int | None, trouble: str) -> None:
        pass
