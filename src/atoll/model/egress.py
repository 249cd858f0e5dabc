"""Destinations and egress rules: canonical names and addresses, and which of them are allowed.

A name is converted to its canonical form once, on arrival; every decision and the connection use
that form. A name without a canonical form is refused, never repaired.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

WEB_PORTS = (80, 443)
"""The ports of a rule that names none."""
ANY_PORT = "*"
_LABEL = "[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*", re.ASCII)
_NUMERIC = re.compile("[0-9]+|0x[0-9a-f]*", re.ASCII)
_PORT = re.compile("[1-9][0-9]{0,4}", re.ASCII)
_LAST_PORT = 65_535


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(map(ipaddress.ip_network, texts))


_NEVER = _networks(
    "0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "168.63.129.16/32",
    "100.100.100.200/32", "192.0.0.192/32",
    "::/127", "fe80::/10", "ff00::/8", "fd00:ec2::/32", "fd20:ce::254/128",
)  # fmt: skip
"""Loopback, link-local, multicast and the addresses of cloud metadata services."""
_CARRIERS = _networks(
    "::ffff:0:0/96", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32",
)  # fmt: skip
"""IPv6 ranges that embed IPv4 addresses, which could be any."""
_SPECIAL = _networks("192.88.99.0/24", "3fff::/20")
"""Reserved like private ranges; not every Python version knows these."""
_UNICAST = ipaddress.IPv6Network("2000::/3")
"""The only public part of IPv6; the rest is unassigned or retired."""
_RESERVED = {
    ipaddress.ip_network(network): meaning
    for network, meaning in (
        ("198.18.0.0/15", "for benchmarks: a VPN or proxy on this machine gives names such ones"),
        ("100.64.0.0/10", "shared by a carrier's customers, or a VPN's"),
        ("192.0.2.0/24", "for documentation only"),
        ("198.51.100.0/24", "for documentation only"),
        ("203.0.113.0/24", "for documentation only"),
        ("2001:db8::/32", "for documentation only"),
        ("3fff::/20", "for documentation only"),
        ("fc00::/7", "private"),
    )
}
"""Purposes of special-purpose addresses (the registries of RFC 6890)."""
LOCAL = "localhost"
_NEVER_NAMES = frozenset({
    "metadata", "metadata.google.internal", "metadata.goog", "instance-data",
    "instance-data.ec2.internal",
})  # fmt: skip
"""Names of addresses in `_NEVER`, for when the owner's upstream proxy resolves them."""


def canonical_name(text: str) -> str:
    """Returns the canonical form of a host name. Raises ValueError for anything else.

    One final dot is allowed, and so is upper case; an address is not a name.
    """
    if not text.isascii():
        raise ValueError("is not in ASCII: use the `xn--` form")
    name = text.lower().removesuffix(".")
    if not _NAME.fullmatch(name) or _NUMERIC.fullmatch(name.rpartition(".")[2]):
        raise ValueError("is not a host name")
    return name


def canonical_address(text: str) -> Address | None:
    """The address that a text spells out in full; None for names and abbreviated addresses."""
    is_bracketed = text.startswith("[") and text.endswith("]")
    bare = text[1:-1] if is_bracketed else text
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return None
    # A zone names an interface of the host, which the capsule does not know.
    is_odd = "%" in bare or (is_bracketed and address.version == 4)
    return None if is_odd else address


def canonical_port(text: str) -> int:
    """Raises ValueError for everything but 1 to 65535 in plain digits."""
    if not _PORT.fullmatch(text) or int(text) > _LAST_PORT:
        raise ValueError("is not a port")
    return int(text)


class Destination(NamedTuple):
    """A requested destination in canonical form."""

    place: str | Address
    port: int

    @property
    def text(self) -> str:
        return join(str(self.place), self.port)


def join(place: str, port: int) -> str:
    return f"[{place}]:{port}" if ":" in place else f"{place}:{port}"


def parse_destination(text: str, *, default_port: int | None = None) -> Destination:
    """`name:port`, `1.2.3.4:port` or `[v6]:port`. Raises ValueError for all else."""
    place, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        if default_port is None:
            raise ValueError("has no port")
        return parse_place(text, default_port)
    return parse_place(place, canonical_port(port))


def parse_place(text: str, port: int) -> Destination:
    """A name or an address; IPv6 in brackets."""
    if ":" in text and not text.startswith("["):
        raise ValueError("is not a host name")
    address = canonical_address(text)
    return Destination(canonical_name(text) if address is None else address, port)


class EgressRule(NamedTuple):
    """One allowed destination, as `atoll.model.rules.require_allow_rule` accepts it."""

    text: str
    name: str = ""
    suffix: str = ""
    network: Network | None = None
    host: bool = False
    """Whether it means a port of the owner's loopback."""
    ports: tuple[int, ...] | None = WEB_PORTS
    """None: all of them."""

    @classmethod
    def parse(cls, text: str) -> EgressRule:
        place, colon, port = text.rpartition(":")
        if not colon or text.endswith("]") or (":" in place and not place.endswith("]")):
            place, port = text, ""
        ports = None if port == ANY_PORT else (int(port),) if port else WEB_PORTS
        if place == "host":
            return cls(text, host=True, ports=ports)
        if place.startswith("*."):
            return cls(text, suffix=place[1:], ports=ports)
        bare = place.removeprefix("[").removesuffix("]")
        try:
            return cls(text, network=ipaddress.ip_network(bare), ports=ports)
        except ValueError:
            return cls(text, name=place, ports=ports)

    def has_port(self, port: int) -> bool:
        return self.ports is None or port in self.ports

    def names(self, place: str | Address) -> bool:
        if isinstance(place, str):
            return place == self.name or bool(self.suffix and place.endswith(self.suffix))
        return self.covers(place)

    def covers(self, address: Address) -> bool:
        return self.network is not None and address in self.network


def _is_never(place: str | Address) -> bool:
    """What no rule can allow, including IPv6 addresses that embed IPv4 ones."""
    if isinstance(place, str):
        return is_local(place) or place in _NEVER_NAMES
    return is_in(place, _NEVER) or is_in(place, _CARRIERS)


class Verdict(NamedTuple):
    allowed: bool
    why: str
    """The rule that allows it, or the reason for refusing it."""
    ask: str = ""
    """The rule that would allow it; empty when none would."""


class Policy(NamedTuple):
    """The destinations that one capsule may reach."""

    mode: str
    """`none`, `allow` or `open`."""
    rules: tuple[EgressRule, ...] = ()

    @classmethod
    def of(cls, mode: str, texts: Iterable[str]) -> Policy:
        return cls(mode, tuple(EgressRule.parse(text) for text in texts))

    def knows(self, name: str) -> bool:
        """Whether some port of a name is allowed, so that DNS may answer for it."""
        return self.mode == "open" or (
            self.mode == "allow" and any(rule.names(name) for rule in self.rules)
        )

    def judge(self, wanted: Destination) -> Verdict:
        """Checks a destination before name resolution: by its name, or its literal address."""
        place, port = wanted
        if self.mode == "none":
            return Verdict(allowed=False, why="this capsule has no network")
        if _is_never(place):
            return Verdict(allowed=False, why=f"`{place}` is never allowed")
        by_name = [rule for rule in self.rules if not rule.host and rule.names(place)]
        for rule in by_name:
            if rule.has_port(port):
                return Verdict(allowed=True, why=rule.text)
        if self.mode == "open":
            return Verdict(allowed=True, why="open")
        ask = str(place) if port in WEB_PORTS else wanted.text
        if by_name:
            return Verdict(allowed=False, why=f"port {port} of `{place}` is not allowed", ask=ask)
        return Verdict(allowed=False, why=f"`{place}` is not allowed", ask=ask)

    def judge_address(self, address: Address, port: int, own: frozenset[Address]) -> Verdict:
        """Checks the exact address to connect to; `own` are the host's addresses."""
        if _is_never(address):
            return Verdict(allowed=False, why=f"the address {address} is never allowed")
        for rule in self.rules:
            if rule.covers(address) and rule.has_port(port):
                return Verdict(allowed=True, why=rule.text)
        if address in own:
            return Verdict(allowed=False, why=f"the address {address} is this machine's own")
        if not is_public(address):
            ask = join(str(address), port)
            why = f"the address {address} is {describe_reserved(address)}"
            return Verdict(allowed=False, why=why, ask=ask)
        return Verdict(allowed=True, why="public")

    def host_ports(self) -> tuple[int, ...]:
        """Ports of the owner's loopback that the capsule can reach on its own loopback."""
        found = {port for rule in self.rules if rule.host for port in rule.ports or ()}
        return tuple(sorted(found)) if self.mode != "none" else ()


def is_local(name: str) -> bool:
    """Whether a canonical name means the local machine, which is the capsule itself."""
    return name.rpartition(".")[2] == LOCAL


def is_public(address: Address) -> bool:
    is_meant = address.version == 4 or address in _UNICAST
    return is_meant and address.is_global and not is_in(address, _SPECIAL)


def describe_reserved(address: Address) -> str:
    """The purpose of a non-public address, to complete the sentence "the address is …"."""
    for network, meaning in _RESERVED.items():
        if is_in(address, (network,)):
            return meaning
    return "private" if address.is_private else "for a special purpose"


def is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == n.version and address in n for n in networks)
