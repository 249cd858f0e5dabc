"""The share of the daemon that one capsule may use, and limits on names that it looks up.

Capsules share one event loop and one set of descriptors, so each has a limit that leaves room for
the others. The limits outlive the listeners: a changed policy does not reset them.

A lookup leaves the machine: the name servers of a zone below `*.example.org` see the names that are
asked for, and a name can carry data. So the names under a wildcard rule are limited; an exact rule
allows no choice, and in mode `open` there is no limit either.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from atoll.daemon.egress.host_network import KEPT_S
from atoll.model.egress import Policy

Clock = Callable[[], float]


class TokenBucket:
    """Holds up to `capacity` tokens, and gains `per_s` of them each second. Starts full."""

    def __init__(self, capacity: float, per_s: float, clock: Clock = time.monotonic) -> None:
        self._capacity = capacity
        self._per_s = per_s
        self._clock = clock
        self._level = capacity
        self._at = clock()

    @property
    def level(self) -> float:
        """The tokens that are left; negative after `reserve` took more than there were."""
        now = self._clock()
        self._level = min(self._capacity, self._level + (now - self._at) * self._per_s)
        self._at = now
        return self._level

    def take(self, count: float = 1) -> bool:
        """Takes `count` tokens; returns False and takes none if there are fewer."""
        if self.level < count:
            return False
        self._level -= count
        return True

    def reserve(self, count: float = 1) -> float:
        """Takes `count` tokens in any case, and returns how many seconds to wait for them."""
        self._level = self.level - count
        return max(0.0, -self._level / self._per_s)


class Pace:
    """Delays work to a steady rate once a burst is used up.

    It refuses nothing, so the callers bound how many wait at the same time.
    """

    def __init__(self, burst: float, per_s: float) -> None:
        self._bucket = TokenBucket(burst, per_s)

    def reserve(self) -> float:
        """Takes the next turn, and returns how many seconds to wait for it."""
        return self._bucket.reserve()

    async def wait(self) -> None:
        """Returns when it is the caller's turn."""
        delay_s = self.reserve()
        if delay_s > 0:
            await asyncio.sleep(delay_s)


_HOUR_S = 3600.0


class WildcardLimits(NamedTuple):
    """The defaults leave room for package installs, CDN shards and a few hundred buckets."""

    labels: int = 8
    """Below the suffix of the rule, as are `characters`."""
    characters: int = 128
    new_names: int = 500
    """New names under one wildcard: as many at once, and as many in each hour."""
    new_characters: int = 16_384
    """The same for the characters of those names."""
    burst: int = 200
    """Lookups under all wildcards together, also of known names: as many at once."""
    per_s: float = 20.0
    known: int = 2_048
    """Names under one wildcard that are remembered, and so are not new."""


class LimitError(Exception):
    """A name is over a limit. The text may be shown inside."""

    def __init__(self, rule: str, why: str) -> None:
        super().__init__(why)
        self.rule = rule


class _Wildcard:
    def __init__(self, limits: WildcardLimits, clock: Clock) -> None:
        self.names = TokenBucket(limits.new_names, limits.new_names / _HOUR_S, clock)
        self.characters = TokenBucket(limits.new_characters, limits.new_characters / _HOUR_S, clock)
        self.known: OrderedDict[str, float] = OrderedDict()
        """Below the suffix → when it was last looked up."""


class NameLimits:
    """The limits of one capsule, for the lifetime of the daemon's worker."""

    def __init__(self, limits: WildcardLimits | None = None, clock: Clock = time.monotonic) -> None:
        self._limits = limits or WildcardLimits()
        self._clock = clock
        self._lookups = TokenBucket(self._limits.burst, self._limits.per_s, clock)
        self._wildcards: dict[str, _Wildcard] = {}

    def require_form(self, policy: Policy, name: str) -> None:
        """Raises LimitError for a name with more labels or characters than a wildcard lets pass."""
        suffix = _find_suffix(policy, name)
        if suffix is not None:
            self._require_form(suffix, name.removesuffix(suffix))

    def require_lookup(self, policy: Policy, name: str) -> None:
        """Counts a lookup. Raises LimitError when there were too many: then it must not happen.

        A name is counted once in the time for which its addresses are kept.
        """
        suffix = _find_suffix(policy, name)
        if suffix is None:
            return
        rule, below, now = f"*{suffix}", name.removesuffix(suffix), self._clock()
        self._require_form(suffix, below)
        wildcard = self._wildcards.get(suffix)
        if wildcard is None:
            # A rule that is withdrawn and granted again has no new budget.
            wildcard = self._wildcards[suffix] = _Wildcard(self._limits, self._clock)
        last = wildcard.known.get(below)
        if last is not None and now - last < KEPT_S:
            return
        if self._lookups.level < 1:
            raise LimitError(rule, "too many names a second are looked up under wildcards")
        if last is None:
            self._require_new(rule, wildcard, below)
        self._lookups.take()
        wildcard.known[below] = now
        wildcard.known.move_to_end(below)
        if len(wildcard.known) > self._limits.known:
            wildcard.known.popitem(last=False)

    def _require_form(self, suffix: str, below: str) -> None:
        limits = self._limits
        if below.count(".") >= limits.labels or len(below) > limits.characters:
            why = (
                f"under `*{suffix}` a name has at most {limits.labels} labels"
                f" and {limits.characters} characters"
            )
            raise LimitError(f"*{suffix}", why)

    def _require_new(self, rule: str, wildcard: _Wildcard, below: str) -> None:
        limits = self._limits
        if wildcard.names.level < 1:
            why = f"more than {limits.new_names} new names an hour under `{rule}`"
            raise LimitError(rule, why)
        if not wildcard.characters.take(len(below)):
            why = f"more than {limits.new_characters} characters of new names an hour"
            raise LimitError(rule, f"{why} under `{rule}`")
        wildcard.names.take()


def _find_suffix(policy: Policy, name: str) -> str | None:
    """The suffix of the wildcard that allows the name; None when an exact rule does, or none."""
    if policy.mode != "allow" or any(rule.name == name for rule in policy.rules):
        return None
    return next((r.suffix for r in policy.rules if r.suffix and name.endswith(r.suffix)), None)


MOST_CONNECTIONS = 1024
_DESCRIPTORS_PER_CONNECTION = 2
_OTHER_DESCRIPTORS = 2048
"""For listeners, holders, published ports and files."""
_FULL_CAPSULES = 8
"""This many capsules can use up their connections at the same time and leave those free."""
_FEWEST_CONNECTIONS = 32
TURN_BURST, TURNS_PER_S = 1500, 200.0
"""Connections, requests in plain HTTP and DNS questions."""
NAME_BURST, NAMES_PER_S = 2000, 5.0
"""New synthetic addresses. With 130,000 of them, none is used again within six hours."""


def most_connections(descriptors: int) -> int:
    """The limit of one capsule, for this number of descriptors of the daemon."""
    shared = descriptors - _OTHER_DESCRIPTORS
    fair = shared // (_DESCRIPTORS_PER_CONNECTION * _FULL_CAPSULES)
    return max(_FEWEST_CONNECTIONS, min(MOST_CONNECTIONS, fair))


class EgressShare:
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
        """Awaited before each connection, request or DNS query is handled."""
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
