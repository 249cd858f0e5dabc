"""Compares a frozen base, merged as a new capsule sees it, with its source, file by file.

Intact layers are not enough: a layer may hide files of those below it, so only the merged layers
show what a capsule contains.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers.carry_selection import skipper
from atoll.drivers.layers.deltas import find_manifest
from atoll.drivers.layers.dependency_layers import DependencyLayers
from atoll.drivers.layers.fingerprint import RESTLESS
from atoll.drivers.layers.pool import Pool
from atoll.host.tree import manifests
from atoll.host.tree.layer_stack import Namespace
from atoll.host.tree.manifests import Manifest
from atoll.host.tree.merged_tree import MergedEntry, MergedTree
from atoll.model.errors import StateError
from atoll.model.plan import FileSelection


class Gaps(NamedTuple):
    """Paths in which a new capsule would differ from the source of its layers."""

    missing: list[str]
    outdated: list[str]
    """Changed in the checkout since the freeze, although no fingerprint changed."""


class FrozenFiles(NamedTuple):
    """A base in a pool."""

    pool: Pool
    commit: tuple[str, ...]
    """The layers of the commit and of the repository."""
    carried: DependencyLayers
    namespace: Namespace | None
    """The prefix of overlayfs' extended attributes; None where no overlay is used."""


def find_gaps(
    base: FrozenFiles, checkout: str, selection: FileSelection, *, is_fresh: bool
) -> Gaps:
    """The paths that are missing in the merged layers of a base, sorted.

    With `is_fresh` the base is what the next capsule starts from, and is compared with the
    checkout. Otherwise it is about to be refreshed, and is compared with its own manifests.
    """
    shown = _merged(base, (*base.commit, *base.carried.layers))
    tracked = _merged(base, base.commit)
    recorded = _recorded(base)
    expected = _scanned(base, checkout, selection) if is_fresh else recorded
    files = {
        path: stamp
        for path, stamp in expected.items()
        if not stamp.is_directory and RESTLESS.isdisjoint(path.split("/"))
    }
    missing = {*tracked, *files} - shown.keys()
    # A walk compares the same way: content may differ with the same size and mtime.
    changed = set(manifests.difference(recorded, files, strict=True).changed) & recorded.keys()
    outdated = (
        path
        for path, stamp in files.items()
        if is_fresh
        and path in shown
        and stamp.is_file
        and (path in changed or _differs(stamp, shown[path]))
    )
    return Gaps(sorted(missing), sorted(outdated))


def _differs(stamp: manifests.Stamp, entry: MergedEntry) -> bool:
    return stamp.size != entry.size or stamp.mtime_ns != entry.mtime_ns


def _merged(base: FrozenFiles, layers: tuple[str, ...]) -> Mapping[str, MergedEntry]:
    """All files and links in the merged layers, except those of the repository."""
    stack = [base.pool.tree(layer) for layer in layers]
    if not stack:
        return {}
    with MergedTree(stack, own=len(stack), namespace=base.namespace) as tree:
        found = tree.changes(skip=lambda path, _: path.raw == b".git")
    return {os.fsdecode(path.raw): entry for path, entry in found.entries.items()}


def _scanned(base: FrozenFiles, checkout: str, selection: FileSelection) -> Manifest:
    home = str(base.pool.root.parents[1])
    skip = skipper(checkout, carry=selection.carry, never=selection.never, home=home)
    below = (*base.carried.directories, *base.carried.rest)
    return manifests.scan(Path(checkout), below=below, skip=skip).entries if below else {}


def _recorded(base: FrozenFiles) -> Manifest:
    return dict(entry for manifest in _manifests(base) for entry in manifest.items())


def _manifests(base: FrozenFiles) -> Iterator[Manifest]:
    for part in base.carried.parts:
        try:
            found = find_manifest(base.pool, part.layers)
        except StateError:
            continue
        # Without a manifest the part is frozen again before its next use.
        if found is not None:
            yield found
