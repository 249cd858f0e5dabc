"""Addresses that stand in for names inside one capsule, so that a connection tells its name."""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from atoll.keeper.networks import STAND_INS
from atoll.model.egress import Address

RANGE = ipaddress.IPv4Network(STAND_INS)
_FIRST = 256
"""Below it lies what has another meaning: the name server."""
MOST = 4096


class StandIns:
    """A name has the same address as long as it is in the table. When that is full, the name that
    was longest not asked for goes; one to which a connection lives does not.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._addresses: OrderedDict[str, ipaddress.IPv4Address] = OrderedDict()
        self._names: dict[Address, str] = {}
        self._used: Counter[str] = Counter()

    def address_of(self, name: str) -> ipaddress.IPv4Address | None:
        """None when all addresses are in use."""
        known = self._addresses.get(name)
        if known is None:
            known = self._free_address()
            if known is None:
                return None
            self._addresses[name] = known
            self._names[known] = name
        self._addresses.move_to_end(name)
        return known

    def _free_address(self) -> ipaddress.IPv4Address | None:
        if len(self._addresses) < self._most:
            return RANGE[_FIRST + len(self._addresses)]
        oldest = next((name for name in self._addresses if not self._used[name]), None)
        if oldest is None:
            return None
        address = self._addresses.pop(oldest)
        del self._names[address]
        return address

    def find_name(self, address: Address) -> str | None:
        return self._names.get(address)

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """While this lasts, the name keeps its address."""
        self._used[name] += 1
        try:
            yield
        finally:
            self._used[name] -= 1
            if not self._used[name]:
                del self._used[name]
