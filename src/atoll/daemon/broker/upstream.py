"""Connections from the broker to the real servers, with verified certificates."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from atoll.daemon.broker.tls_streams import ServerTrust, connect_tls
from atoll.daemon.egress.dialer import Dialer
from atoll.daemon.streams import Stream
from atoll.model.egress import Destination, join

_PORTS = {"http": 80, "https": 443}


class ServerPlace(NamedTuple):
    """Where requests for one host are sent."""

    host: str
    port: int
    is_tls: bool
    authority: str
    """The value of `Host`."""
    prefix: str = ""
    """Put before the path of each request."""
    is_chosen: bool = False
    """Whether the owner has named it instead of the host."""


def server_place(host: str, upstream: str) -> ServerPlace:
    """`https://HOST`, or the URL that the owner has named instead. Raises ValueError."""
    if not upstream:
        return ServerPlace(host, _PORTS["https"], is_tls=True, authority=host)
    parts = urlsplit(upstream)
    name, default = parts.hostname, _PORTS.get(parts.scheme)
    if default is None or not name or parts.query or parts.fragment or parts.username:
        raise ValueError("the upstream is not `http://HOST[:PORT][/PATH]` or `https://…`")
    port = parts.port or default
    authority = join(name, port)
    if port == default:
        authority = f"[{name}]" if ":" in name else name
    return ServerPlace(
        name, port, parts.scheme == "https", authority, parts.path.rstrip("/"), is_chosen=True
    )


class ServerConnection(NamedTuple):
    """A connection to a real server, and the address that was reached."""

    place: ServerPlace
    stream: Stream
    address: str | None


async def connect(dialer: Dialer, trust: ServerTrust, place: ServerPlace) -> ServerConnection:
    """Raises Refusal, UnreachableError, and HandshakeError for a certificate that is not valid."""
    if place.is_chosen:
        made = await dialer.connect_for_owner(place.host, place.port)
    else:
        made = await dialer.connect(Destination(place.host, place.port))
    stream = made.stream
    if not place.is_tls:
        return ServerConnection(place, stream, made.address)
    try:
        secured = await connect_tls(stream, trust, place.host)
    except BaseException:
        stream.sock.close()
        raise
    return ServerConnection(place, secured, made.address)
