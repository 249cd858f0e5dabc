"""A capsule whose network can be reached now, and what of it is published."""

from __future__ import annotations

import math
from collections.abc import Collection

from atoll.daemon.ports.doors import Door
from atoll.daemon.ports.targets import LOOPBACK, Inside, Target
from atoll.host.listening import Listening, dial_order
from atoll.model.state import Capsule


class Attached:
    """A capsule whose network can be reached now."""

    def __init__(self, inside: Inside) -> None:
        self.inside = inside
        self.doors: dict[str, Door] = {}
        self.troubles: dict[str, OSError] = {}
        """Leases whose port another process has taken."""
        self.unpublished: frozenset[int] = frozenset()
        """Ports that listen and have no lease."""
        self.is_complete = True
        """Whether the listing named everything that listens."""
        self.leased_at: float | None = None
        """When a port that is not declared was last leased."""
        self._found: frozenset[Listening] = frozenset()
        self._addresses: dict[int, tuple[str, ...]] = {}
        self._idle_since: dict[str, float] | None = None
        self._first_look = math.inf

    @property
    def listening(self) -> Collection[int]:
        """The ports; asking for one of them does not depend on their number."""
        return self._addresses.keys()

    def see(self, inside: Inside, found: frozenset[Listening], *, is_complete: bool) -> bool:
        """Takes a new listing. Returns whether it differs from the last one."""
        is_same = self.inside is inside and self._found == found and self.is_complete == is_complete
        self.inside, self._found, self.is_complete = inside, found, is_complete
        if is_same:
            return False
        places: dict[int, list[str]] = {}
        for address, port in found:
            places.setdefault(port, []).append(address)
        self._addresses = {port: tuple(dial_order(at)) for port, at in places.items()}
        return True

    def target(self, number: int) -> Target:
        """Where a port inside is reached. One that an incomplete listing does not name may listen
        all the same, so it is tried.
        """
        at = self._addresses.get(number, () if self.is_complete else LOOPBACK)
        return Target(self.inside, number, at, self.inside.capsule.id)

    def is_reachable(self, number: int) -> bool:
        return bool(self.target(number).addresses)

    def idle_leases(self, capsule: Capsule, now: float) -> dict[str, float]:
        """The leases of undeclared ports that do not listen, each with the time since when.

        Those that do not listen at the first look have not for as long as anybody knows: their
        listeners ended with a former run.
        """
        known, since = (self._idle_since, now) if self._idle_since is not None else ({}, -math.inf)
        if self._idle_since is None:
            self._first_look = now
        self._idle_since = {
            name: known.get(name, since)
            for name, number in capsule.numbers.items()
            if name.isdigit() and not self.is_reachable(number)
        }
        return self._idle_since

    def leases_idle_for(self, duration_s: float, now: float) -> list[str]:
        """Those of `idle_leases` that have not listened for so long, as far as it was seen."""
        return [
            name
            for name, since in (self._idle_since or {}).items()
            if now >= max(since, self._first_look) + duration_s
        ]
