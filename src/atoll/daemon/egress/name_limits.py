"""How many names one capsule may have looked up under a wildcard rule.

A lookup leaves the machine: whoever runs the name server of a zone below `*.example.org` reads the
names that are asked for, and a name can carry data. An exact rule leaves nothing to choose, and so
there is no limit under one. Where everything is open there is none either.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import NamedTuple

from atoll.daemon.egress.rates import Clock, TokenBucket
from atoll.daemon.egress.world import KEPT_S
from atoll.model.egress import Policy

_HOUR_S = 3600.0


class WildcardLimits(NamedTuple):
    """The defaults leave room for package installs, CDN shards and a few hundred buckets."""

    labels: int = 8
    """Below the suffix of the rule, as are `characters`."""
    characters: int = 128
    new_names: int = 500
    """New names under one wildcard: as many at once, and as many in each hour."""
    new_characters: int = 16_384
    """The characters of those names, likewise."""
    burst: int = 200
    """Lookups under all wildcards together, also of known names: as many at once."""
    per_s: float = 20.0
    known: int = 2_048
    """Names under one wildcard that are remembered, and so are not new."""


class LimitError(Exception):
    """A name is over a limit. The text is fit to be shown inside."""

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
    """Of one capsule, as long as the daemon's worker lives."""

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
