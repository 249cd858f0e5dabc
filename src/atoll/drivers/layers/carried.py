"""Dependency layers: what git does not track and a capsule needs, frozen once, refreshed by delta.

`carried.json` in the pool says what was frozen last. Its fingerprints tell cheaply whether that
still stands; where they do not, one walk finds what changed, and only that is copied.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from atoll.drivers.layers.fingerprint import REST, ROOT, fingerprint
from atoll.drivers.layers.ignore_rules import stamp_rules
from atoll.drivers.layers.pool import Pool
from atoll.host import files
from atoll.host.trees import LeftOut
from atoll.model import secretfiles
from atoll.model.plan import Ground

_FILE = "carried.json"


class Part(NamedTuple):
    """One ignored directory in the root, or all other ignored entries together."""

    name: str
    layers: tuple[str, ...]
    stamp: str
    hidden: tuple[str, ...] | None = None
    """What the deltas among the layers hide of those below; None when that is not known."""


class Watched(NamedTuple):
    """What the daemon's watch on the checkout says."""

    watch: str = ""
    """Which watch it is; empty when there is none."""
    position: int = 0
    """The moment of the answer."""
    paths: tuple[str, ...] | None = None
    """What changed after the layers were frozen; None when that is not known."""
    is_continued: bool = False
    """Whether it is the same watch as when the layers were frozen."""


NOT_WATCHED = Watched()


class Carried(NamedTuple):
    ground: str = ""
    """Which settings it was chosen by."""
    root: str = ""
    parts: tuple[Part, ...] = ()
    rest: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    rules: str = ""
    """The stamp of what decides which entries are ignored, and of the commit."""
    watched: tuple[str, ...] = ()
    """What that stamp is made of."""
    settings: str = ""
    """The part of that stamp that no directory of the checkout changes."""
    commit: str = ""
    """The commit whose base they were frozen for."""
    unignored: tuple[str, ...] = ()
    """Dependency directories that no rule of the project ignores."""
    own_rules: str | None = None
    """The layer that lets git inside ignore them."""
    watch: str = ""
    """The daemon's watch on the checkout at that time; empty when there was none."""
    position: int = 0
    """Where that watch was before the checkout was looked at."""

    @property
    def layers(self) -> tuple[str, ...]:
        top = () if self.own_rules is None else (self.own_rules,)
        return (*(layer for part in self.parts for layer in part.layers), *top)

    @property
    def directories(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts if part.name != REST)


def save_carried(pool: Pool, made: Carried) -> None:
    files.write_atomic(pool.root / _FILE, json.dumps(made._asdict()).encode())


def forget_carried(pool: Pool) -> None:
    """Lets everything be frozen anew, when it is next needed. The layers stay for their users."""
    (pool.root / _FILE).unlink(missing_ok=True)


def load_carried(pool: Pool) -> Carried | None:
    content = files.read_regular(pool.root / _FILE, limit_bytes=1 << 28)
    try:
        raw: dict[str, Any] = json.loads(content or b"null") or {}
        return Carried(
            ground=raw["ground"],
            root=raw["root"],
            parts=tuple(_parse_part(*part) for part in raw["parts"]),
            rest=tuple(raw["rest"]),
            left_out=tuple(LeftOut(*entry) for entry in raw["left_out"]),
            # Files of earlier versions lack these: their stamp fits nothing.
            rules=raw.get("rules", ""),
            watched=tuple(raw.get("watched", ())),
            settings=str(raw.get("settings", "")),
            commit=str(raw.get("commit", "")),
            unignored=tuple(raw.get("unignored", ())),
            own_rules=raw.get("own_rules"),
            watch=str(raw.get("watch", "")),
            position=int(raw.get("position", 0)),
        )
    except (ValueError, KeyError, TypeError):
        # Torn, or from before: what it named is frozen again, and found to be there already.
        return None


def _parse_part(name: str, layers: list[str], stamp: str, hidden: list[str] | None = None) -> Part:
    return Part(name, tuple(layers), stamp, None if hidden is None else tuple(hidden))


def find_fresh(pool: Pool, checkout: str, ground: Ground, commit: str) -> Carried | None:
    """What was frozen last, if it still stands by all that stats can tell."""
    known = load_carried(pool)
    if known is None or known.ground != ground_key(ground):
        return None
    if known.rules != stamp_rules(checkout, known.watched, commit):
        return None
    if known.own_rules is not None and pool.find(known.own_rules) is None:
        return None
    stamps = fingerprint(checkout, known.directories, known.rest)
    for part in known.parts:
        if stamps.get(part.name) != part.stamp or any(pool.find(x) is None for x in part.layers):
            return None
    return known if stamps[ROOT] == known.root else None


def ground_key(ground: Ground) -> str:
    """Parts that were made under another key are made anew."""
    return json.dumps([ground.carry, ground.never, secretfiles.VERSION])


def is_whole(pool: Pool, part: Part) -> bool:
    return all(pool.find(layer) is not None for layer in part.layers)
