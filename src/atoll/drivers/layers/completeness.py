"""Compares a frozen base with what it was frozen from, file by file, as a new capsule sees it.

Each layer may be intact and a file still be missing, because a layer above it hides it: only the
merged layers show what a capsule really contains.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers.carried import Carried
from atoll.drivers.layers.carry import skipper
from atoll.drivers.layers.deltas import find_manifest
from atoll.drivers.layers.fingerprint import RESTLESS
from atoll.drivers.layers.pool import Pool
from atoll.host import trees
from atoll.host.layer_stack import Namespace
from atoll.host.merged import Entry, MergedTree
from atoll.host.trees import Manifest
from atoll.model.errors import StateError
from atoll.model.plan import Ground


class Gaps(NamedTuple):
    """Paths in which a new capsule would differ from what its layers were frozen from."""

    missing: list[str]
    outdated: list[str]
    """Changed in the checkout since they were frozen, without any stamp having changed."""


class Frozen(NamedTuple):
    """A base as it is in a pool."""

    pool: Pool
    commit: tuple[str, ...]
    """The layers of the commit and of the repository."""
    carried: Carried
    namespace: Namespace | None
    """Where the kernel keeps its marks in layers; None where no overlay is used."""


def find_gaps(base: Frozen, checkout: str, ground: Ground, *, is_fresh: bool) -> Gaps:
    """What is missing in the merged layers of a base; sorted.

    With `is_fresh` the base is what the next capsule starts from, so it is compared with the
    checkout. Otherwise it is going to be refreshed, and is compared with its own manifests.
    """
    shown = _merged(base, (*base.commit, *base.carried.layers))
    tracked = _merged(base, base.commit)
    recorded = _recorded(base)
    expected = _scanned(base, checkout, ground) if is_fresh else recorded
    files = {
        path: stamp
        for path, stamp in expected.items()
        if not stamp.is_directory and RESTLESS.isdisjoint(path.split("/"))
    }
    missing = {*tracked, *files} - shown.keys()
    # As a walk compares: a file of the same size and mtime may have another content.
    changed = set(trees.difference(recorded, files, strict=True).changed) & recorded.keys()
    outdated = (
        path
        for path, stamp in files.items()
        if is_fresh
        and path in shown
        and stamp.is_file
        and (path in changed or _differs(stamp, shown[path]))
    )
    return Gaps(sorted(missing), sorted(outdated))


def _differs(stamp: trees.Stamp, entry: Entry) -> bool:
    return stamp.size != entry.size or stamp.mtime_ns != entry.mtime_ns


def _merged(base: Frozen, layers: tuple[str, ...]) -> Mapping[str, Entry]:
    """All files and links that these layers show together, without those of the repository."""
    stack = [base.pool.tree(layer) for layer in layers]
    if not stack:
        return {}
    with MergedTree(stack, own=len(stack), namespace=base.namespace) as tree:
        found = tree.changes(skip=lambda path, _: path.raw == b".git")
    return {os.fsdecode(path.raw): entry for path, entry in found.entries.items()}


def _scanned(base: Frozen, checkout: str, ground: Ground) -> Manifest:
    home = str(base.pool.root.parents[1])
    skip = skipper(checkout, carry=ground.carry, never=ground.never, home=home)
    below = (*base.carried.directories, *base.carried.rest)
    return trees.scan(Path(checkout), below=below, skip=skip).entries if below else {}


def _recorded(base: Frozen) -> Manifest:
    return dict(entry for manifest in _manifests(base) for entry in manifest.items())


def _manifests(base: Frozen) -> Iterator[Manifest]:
    for part in base.carried.parts:
        try:
            found = find_manifest(base.pool, part.layers)
        except StateError:
            continue
        # Without it the part is frozen anew before it is used.
        if found is not None:
            yield found
