"""What layers of dependencies are called, and what they hold, whole or by what a delta changes."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Sequence
from pathlib import Path

from atoll.drivers.layers.pool import WORKSPACE, Layer, Pool
from atoll.host import copying, manifests, trees
from atoll.host.trees import Manifest
from atoll.model.errors import StateError

DEEPEST = 6
"""Deltas are stacked this high; then one takes the place of all."""
CHANGES = "changes"
"""Beside a layer: what it changes, where nobody has walked to list all that is there then."""


def lies(path: str, below: Sequence[str]) -> bool:
    """Whether a path is one of `below`, or is in one of them."""
    return any(path == place or path.startswith(f"{place}/") for place in below)


def find_manifest(pool: Pool, layers: tuple[str, ...]) -> Manifest | None:
    """What a stack of layers holds; None when that cannot be told any more.

    A layer that was made without a walk says only what it changes (`refresh.py`); a mode of 0 is a
    removed file.
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
    """What the lowest layer of a stack holds, without those of `entries` that a layer above it
    holds: compared with this, they have changed, whatever their stamps say.
    """
    found = find_manifest(pool, layers[:1])
    if found is None:
        return None
    for layer in layers[1:]:
        for path, status in trees.walk(pool.tree(layer) / WORKSPACE):
            if path in entries and not stat.S_ISDIR(status.st_mode):
                found.pop(path, None)
    return found


def make_room(place: Path) -> None:
    """Copying makes its target itself, so that it gets the mode and times of the source."""
    (place / "tree").mkdir(exist_ok=True)


def name_content(
    report: copying.CopyReport,
    changes: trees.Difference | None,
    below: tuple[str, ...],
    *,
    strict: bool = False,
) -> str:
    """A name that says what the layer holds; with `strict` also which files it was copied from, so
    that layers of the same name have the same manifest.
    """
    digest = hashlib.blake2b(digest_size=8)
    for path, stamp in sorted(report.manifest.items()):
        said = report.digests.get(path) or stamp.target or ""
        digest.update(
            f"{path}\0{stamp.mode}\0{stamp.mtime_ns}\0{said}\n".encode(errors="surrogateescape")
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
    report: copying.CopyReport,
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
