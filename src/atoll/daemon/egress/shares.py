"""What one capsule may use of the daemon at most, through all of its ways out together.

Capsules share one event loop and one set of descriptors, so that each has a bound that leaves room
for the others. A share outlives the listeners: it is not renewed when a policy changes.
"""

from __future__ import annotations

import resource

from atoll.daemon.egress.name_limits import NameLimits, WildcardLimits
from atoll.daemon.egress.rates import Pace, TokenBucket

MOST_CONNECTIONS = 1024
_DESCRIPTORS_PER_CONNECTION = 2
_OTHER_DESCRIPTORS = 2048
"""For listeners, holders, published ports and files."""
_FULL_CAPSULES = 8
"""So many capsules can use up their connections at the same time and leave those free."""
_FEWEST_CONNECTIONS = 32
TURN_BURST, TURNS_PER_S = 1500, 200.0
"""Connections, requests in plain HTTP and DNS questions."""
NAME_BURST, NAMES_PER_S = 2000, 5.0
"""New stand-in addresses. With 130,000 of them, none is used again within six hours."""


def most_connections(descriptors: int) -> int:
    """Of one capsule, where the daemon may have so many descriptors."""
    shared = descriptors - _OTHER_DESCRIPTORS
    fair = shared // (_DESCRIPTORS_PER_CONNECTION * _FULL_CAPSULES)
    return max(_FEWEST_CONNECTIONS, min(MOST_CONNECTIONS, fair))


class Share:
    """Of one capsule."""

    def __init__(
        self,
        *,
        most: int | None = None,
        turns: Pace | None = None,
        wildcard_limits: WildcardLimits | None = None,
    ) -> None:
        """`most` connections may be alive at the same time."""
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = most_connections(descriptors) if most is None else most
        self._alive = 0
        self.turns = turns or Pace(TURN_BURST, TURNS_PER_S)
        """Has to be waited for before a connection, a request or a question is looked at."""
        self.names = NameLimits(wildcard_limits)
        self.new_names = TokenBucket(NAME_BURST, NAMES_PER_S)

    @property
    def is_full(self) -> bool:
        return self._alive >= self._most

    def enter(self) -> None:
        """Counts a connection until `leave`."""
        self._alive += 1

    def leave(self) -> None:
        self._alive -= 1
