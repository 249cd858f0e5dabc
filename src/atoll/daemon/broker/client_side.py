"""The client's end of an exchange, as HTTP/1 and HTTP/2 provide it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from atoll.daemon.streams import Stream
from atoll.drivers.network.http1 import Field, Framing


class ClientGoneError(OSError):
    """The client has closed its connection or reset its stream, or its connection cannot be used
    any more.
    """


class ResponseHead(NamedTuple):
    status: int
    reason: bytes
    fields: tuple[Field, ...]
    """End to end, without those that frame the body."""
    length: int | None
    """The value of `Content-Length`, if there is one; of HEAD, that of a body that is not sent."""
    has_body: bool


class ClientSide(Protocol):
    """One request and its response. Whatever is sent raises OSError when the client has gone."""

    @property
    def framing(self) -> Framing:
        """Of the body of the request."""
        ...

    @property
    def has_unread_body(self) -> bool: ...

    async def invite_body(self) -> None:
        """Tells a client that waits for it that its body is wanted."""
        ...

    async def read_body(self) -> bytes:
        """The next piece; nothing at the end. HttpError, or ClientGoneError."""
        ...

    async def wait_gone(self) -> None:
        """Returns when the client has gone. Called only once the body was read."""
        ...

    async def begin(self, head: ResponseHead) -> None: ...

    async def send(self, data: bytes) -> None: ...

    async def end(self) -> None:
        """The response is whole."""
        ...

    async def switch(self, head: ResponseHead) -> Stream:
        """Answers with 101; returns the connection, which then carries the other protocol."""
        ...

    def abort(self) -> None:
        """Ends the response so that the client does not take it for a whole one."""
        ...
