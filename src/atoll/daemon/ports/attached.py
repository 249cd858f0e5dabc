"""A capsule whose network can be reached now, and what of it is published."""

from __future__ import annotations

from atoll.daemon.ports.doors import Door
from atoll.daemon.ports.targets import Inside, Target
from atoll.host.listening import Listening, dialled


class Attached:
    """A capsule whose network can be reached now."""

    def __init__(self, inside: Inside) -> None:
        self.inside = inside
        self.found: frozenset[Listening] = frozenset()
        self.doors: dict[str, Door] = {}
        self.troubles: dict[str, OSError] = {}
        """Leases that a stranger has taken."""
        self.unnamed: frozenset[int] = frozenset()
        """Ports for which there is no lease."""

    @property
    def listening(self) -> set[int]:
        return {place.port for place in self.found}

    def target(self, number: int) -> Target:
        return Target(self.inside, number, tuple(dialled(self.found, number)))
