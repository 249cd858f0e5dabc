"""Dependency layers: untracked files that a capsule needs, frozen once and refreshed by deltas.

`carried.json` in the pool records the latest layers. Fingerprints show cheaply whether they are
still current; if not, one walk finds the changes, and only these are copied.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from atoll.drivers.layers.fingerprint import REST, ROOT, fingerprint
from atoll.drivers.layers.ignore_rules import stamp_rules
from atoll.drivers.layers.pool import Pool
from atoll.host import files
from atoll.host.tree.manifests import LeftOut
from atoll.model import secretfiles
from atoll.model.plan import FileSelection

_FILE = "carried.json"


class DependencyLayer(NamedTuple):
    """One ignored directory in the root, or all other ignored entries together."""

    name: str
    layers: tuple[str, ...]
    stamp: str
    hidden: tuple[str, ...] | None = None
    """Paths that the deltas hide in the layers below; None if unknown."""


class WatchedChanges(NamedTuple):
    """A report of the daemon's watch on the checkout."""

    watch: str = ""
    """The id of the watch; empty when there is none."""
    position: int = 0
    """Its position when it reported."""
    paths: tuple[str, ...] | None = None
    """The paths that changed since the layers were frozen; None if unknown."""
    is_continued: bool = False
    """Whether it is the same watch as at the freeze."""


NOT_WATCHED = WatchedChanges()


class DependencyLayers(NamedTuple):
    ground: str = ""
    """The settings used for the selection."""
    root: str = ""
    parts: tuple[DependencyLayer, ...] = ()
    rest: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    rules: str = ""
    """A fingerprint of the ignore rules and the commit."""
    watched: tuple[str, ...] = ()
    """The files that this fingerprint covers."""
    settings: str = ""
    """The part of that fingerprint that does not depend on directories of the checkout."""
    commit: str = ""
    """The commit whose base they were frozen for."""
    unignored: tuple[str, ...] = ()
    """Dependency directories that no rule of the project ignores."""
    own_rules: str | None = None
    """The layer with ignore rules for them."""
    watch: str = ""
    """The daemon's watch on the checkout at the freeze; empty when there was none."""
    position: int = 0
    """The position of that watch before the checkout was read."""

    @property
    def layers(self) -> tuple[str, ...]:
        top = () if self.own_rules is None else (self.own_rules,)
        return (*(layer for part in self.parts for layer in part.layers), *top)

    @property
    def directories(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts if part.name != REST)


def save_carried(pool: Pool, made: DependencyLayers) -> None:
    files.write_atomic(pool.root / _FILE, json.dumps(made._asdict()).encode())


def forget_carried(pool: Pool) -> None:
    """Makes the next use freeze everything again. The layers stay for capsules that use them."""
    (pool.root / _FILE).unlink(missing_ok=True)


def load_carried(pool: Pool) -> DependencyLayers | None:
    content = files.read_regular(pool.root / _FILE, limit_bytes=1 << 28)
    try:
        raw: dict[str, Any] = json.loads(content or b"null") or {}
        return DependencyLayers(
            ground=raw["ground"],
            root=raw["root"],
            parts=tuple(_parse_part(*part) for part in raw["parts"]),
            rest=tuple(raw["rest"]),
            left_out=tuple(LeftOut(*entry) for entry in raw["left_out"]),
            # Absent in files of earlier versions: their fingerprint matches nothing.
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
        # Truncated or outdated: the parts are frozen again, and existing layers are reused.
        return None


def _parse_part(
    name: str, layers: list[str], stamp: str, hidden: list[str] | None = None
) -> DependencyLayer:
    return DependencyLayer(name, tuple(layers), stamp, None if hidden is None else tuple(hidden))


def find_fresh(
    pool: Pool, checkout: str, selection: FileSelection, commit: str
) -> DependencyLayers | None:
    """The latest layers, if their fingerprints are current. Uses stats only."""
    known = load_carried(pool)
    if known is None or known.ground != selection_key(selection):
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


def selection_key(selection: FileSelection) -> str:
    """A key of the settings: parts frozen with another key are frozen again."""
    return json.dumps([selection.carry, selection.never, secretfiles.VERSION])


def is_whole(pool: Pool, part: DependencyLayer) -> bool:
    return all(pool.find(layer) is not None for layer in part.layers)
