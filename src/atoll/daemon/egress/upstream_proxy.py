"""The owner's own proxy, if the host connects through one.

It is taken from the owner's environment. Its credentials are used only here: they are in no message
of this module, and never inside a capsule.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from atoll.model.egress import Address, Destination, canonical_address

_VARIABLES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")
_EXEMPT = ("NO_PROXY", "no_proxy")
_DEFAULT_PORT = 80


class Upstream(NamedTuple):
    """A proxy that is spoken to in plain HTTP."""

    host: str
    port: int
    authorization: bytes = b""
    """The value of `Proxy-Authorization`; empty for none."""
    exempt: tuple[str, ...] = ()
    """Entries of NO_PROXY."""
    usable: bool = True
    """False if its scheme is not supported: then no connection leaves a capsule."""

    def __repr__(self) -> str:
        return f"Upstream({self.host}:{self.port})"

    def serves(self, wanted: Destination) -> bool:
        return not any(_exempts(entry, wanted) for entry in self.exempt)

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        return [(b"Proxy-Authorization", self.authorization)] if self.authorization else []


def find_upstream(environment: Mapping[str, str]) -> Upstream | None:
    """The proxy that the environment names. One that cannot be parsed or used is returned as not
    usable: the owner's proxy must not be bypassed.
    """
    url = next((environment[name] for name in _VARIABLES if environment.get(name)), "")
    if not url:
        return None
    exempt = next((environment[name] for name in _EXEMPT if environment.get(name)), "")
    entries = tuple(filter(None, (entry.strip().lower() for entry in exempt.split(","))))
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname or "", parts.port or _DEFAULT_PORT
    except ValueError:
        return Upstream("", 0, exempt=entries, usable=False)
    if parts.scheme != "http" or not host:
        return Upstream(host, port, exempt=entries, usable=False)
    return Upstream(host, port, _authorization(parts.username, parts.password), entries)


def _authorization(user: str | None, password: str | None) -> bytes:
    if user is None:
        return b""
    pair = f"{unquote(user)}:{unquote(password or '')}"
    return b"Basic " + base64.b64encode(pair.encode())


def _exempts(entry: str, wanted: Destination) -> bool:
    if entry == "*":
        return True
    place, colon, port = entry.rpartition(":")
    if colon and port.isdecimal() and (":" not in place or place.endswith("]")):
        if int(port) != wanted.port:
            return False
        entry = place
    if isinstance(wanted.place, str):
        name = entry.removeprefix("*").removeprefix(".")
        return wanted.place == name or wanted.place.endswith(f".{name}")
    return _covers(entry, wanted.place)


def _covers(entry: str, address: Address) -> bool:
    known = canonical_address(entry)
    if known is not None:
        return known == address
    try:
        return address in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
