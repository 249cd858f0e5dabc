"""Dependency layers on disk: their ids, their manifests, and delta layers.

A delta has whiteouts for the paths removed since the layer below was frozen. If such a path becomes
tracked or moves into another layer, the whiteout would hide it there too: that delta is no longer
used and its directory is copied in full.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from atoll.drivers.layers.carry_selection import above
from atoll.drivers.layers.dependency_layers import DependencyLayer
from atoll.drivers.layers.pool import WORKSPACE, Layer, Pool
from atoll.host import git
from atoll.host.tree import layer_copy, manifests
from atoll.host.tree.manifests import Manifest
from atoll.model.errors import StateError

DEEPEST = 6
"""The maximum height of a stack of deltas; then one delta replaces all."""
CHANGES = "changes"
"""Beside a layer that was built without a walk: the entries that it changes."""


def is_within(path: str, below: Sequence[str]) -> bool:
    """Whether a path is in `below`, or below one of its paths."""
    return any(path == place or path.startswith(f"{place}/") for place in below)


def find_manifest(pool: Pool, layers: tuple[str, ...]) -> Manifest | None:
    """The merged content of a stack of layers; None if it is no longer known.

    A layer built without a walk lists only its changes (`refresh.py`); mode 0 marks a removal.
    """
    if any(pool.find(layer) is None for layer in layers):
        return None
    changes: list[Manifest] = []
    try:
        for layer in reversed(layers):
            place = pool.layers / layer
            if not (place / CHANGES).exists():
                whole = manifests.load_manifest(place / "manifest")
                break
            changes.append(manifests.load_manifest(place / CHANGES))
        else:
            return None
    except StateError:
        return None
    for some in reversed(changes):
        for path, stamp in some.items():
            if stamp.mode:
                whole[path] = stamp
            else:
                whole.pop(path, None)
    return whole


def find_lowest(pool: Pool, layers: tuple[str, ...], entries: Manifest) -> Manifest | None:
    """The content of the lowest layer of a stack, without the entries that upper layers replace, so
    that these count as changed, independent of their stamps.
    """
    found = find_manifest(pool, layers[:1])
    if found is None:
        return None
    for layer in layers[1:]:
        for path, status in manifests.walk(pool.tree(layer) / WORKSPACE):
            if path in entries and not stat.S_ISDIR(status.st_mode):
                found.pop(path, None)
    return found


def make_room(place: Path) -> None:
    """Creates the parents only: the copy creates its target with the source's mode and times."""
    (place / "tree").mkdir(exist_ok=True)


def name_content(
    report: layer_copy.CopyReport,
    changes: manifests.Difference | None,
    below: tuple[str, ...],
    *,
    strict: bool = False,
) -> str:
    """A content-addressed id; with `strict` it covers the stamps of the source files as well, so
    that layers with the same id have the same manifest.
    """
    digest = hashlib.blake2b(digest_size=8)
    for path, stamp in sorted(report.manifest.items()):
        content = report.digests.get(path) or stamp.target or ""
        digest.update(
            f"{path}\0{stamp.mode}\0{stamp.mtime_ns}\0{content}\n".encode(errors="surrogateescape")
        )
        if strict and not stamp.is_directory:
            digest.update(f"{stamp.inode}\0{stamp.ctime_ns}\n".encode())
    for path in changes.removed if changes is not None else ():
        digest.update(f"-{path}\n".encode(errors="surrogateescape"))
    digest.update(" ".join(below).encode())
    return digest.hexdigest()


def describe(
    name: str,
    kind: str,
    report: layer_copy.CopyReport,
    *,
    about: str,
    below: tuple[str, ...] = (),
) -> Layer:
    stamps = report.manifest.values()
    return Layer(
        id=name,
        kind=kind,
        below=below,
        files=sum(1 for stamp in stamps if not stamp.is_directory),
        bytes=sum(stamp.size for stamp in stamps if stamp.is_file),
        about=about,
    )


_MOST = 20_000
"""With more whiteouts than this a part is copied in full."""


class Occupied:
    """The paths that a commit tracks, and the directories that have their own layers."""

    def __init__(self, checkout: str, commit: str, directories: Iterable[str]) -> None:
        self._checkout = checkout
        self._commit = commit
        self._directories = frozenset(directories)
        self._known: tuple[frozenset[str], frozenset[str]] | None = None

    def is_hidden_by(self, part: DependencyLayer) -> bool:
        """Whether a whiteout in the layers of `part` hides a path of another layer."""
        if part.hidden is None:
            # Frozen by a version that did not record its whiteouts.
            return len(part.layers) > 1
        return self.meets(part.hidden, part.name)

    def meets(self, hidden: Iterable[str], own: str) -> bool:
        """Whether a path hidden by the part `own` is used by another layer or the commit."""
        paths = tuple(hidden)
        if len(paths) > _MOST:
            return True
        return any(self._is_taken(path, own) for path in paths)

    def _is_taken(self, path: str, own: str) -> bool:
        top = path.partition("/")[0]
        if top != own and top in self._directories:
            return True
        tracked, parents = self._tracked()
        return path in tracked or path in parents or any(up in tracked for up in above(path))

    def _tracked(self) -> tuple[frozenset[str], frozenset[str]]:
        if self._known is None:
            listed = git.git(
                "ls-tree", "-r", "-z", "--name-only", "--full-tree", self._commit,
                cwd=self._checkout,
            )  # fmt: skip
            tracked = frozenset(filter(None, listed.text.split("\0")))
            self._known = tracked, frozenset(up for path in tracked for up in above(path))
        return self._known
