"""How much disk capsules, bases and the whole home take, as allocated blocks.

Frozen layers never change: each is measured once, and the figure is kept beside it. What a capsule
can still write is measured each time, up to a limit: then the figure is a lower bound. A layer that
several capsules share counts once in every sum.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers.pool import Pool
from atoll.engine.history import upkeep
from atoll.engine.state.session import Session
from atoll.host import files
from atoll.host.tree import manifests
from atoll.model.layers import is_changed_inside
from atoll.model.state import CapsuleRecord, ProjectRecord

_MOST_ENTRIES = 50_000
_SIZE = "allocated"
"""A file in a frozen layer's directory: its size in bytes."""
_BLOCK_BYTES = 512


class DiskUse(NamedTuple):
    bytes: int = 0
    is_complete: bool = True
    """False when there was more than is measured: then it is at least that much."""


def total(parts: Iterable[DiskUse]) -> DiskUse:
    found = list(parts)
    return DiskUse(sum(part.bytes for part in found), all(part.is_complete for part in found))


def measure(place: Path, *, limit: int | None = _MOST_ENTRIES) -> DiskUse:
    """What a directory takes; a file with several names counts once."""
    size, count = 0, 0
    linked: set[tuple[int, int]] = set()
    for _, status in manifests.walk(place, limit=limit):
        count += 1
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if (status.st_dev, status.st_ino) in linked:
                continue
            linked.add((status.st_dev, status.st_ino))
        size += status.st_blocks * _BLOCK_BYTES
    return DiskUse(size, is_complete=limit is None or count < limit)


def of_layers(pool: Pool, names: Iterable[str]) -> DiskUse:
    return total(_of_layer(pool, name) for name in set(names))


def _of_layer(pool: Pool, name: str) -> DiskUse:
    place = pool.layers / name
    if not (place / "layer.json").exists():
        # A process may still write to it.
        return measure(place)
    known = files.read_regular(place / _SIZE, limit_bytes=32)
    if known is not None and known.isdigit():
        return DiskUse(int(known))
    found = measure(place, limit=None)
    with suppress(OSError):
        files.write_atomic(place / _SIZE, str(found.bytes).encode(), durable=False)
    return found


def of_capsule(session: Session, capsule: CapsuleRecord) -> DiskUse:
    """What the capsule has written: its layers, those of its snapshots, and its own files."""
    pool = Pool(session.pool(capsule.project_id))
    own = [name for name in upkeep.layers_of(session, capsule) if is_changed_inside(name)]
    return total([of_layers(pool, own), measure(Path(capsule.directory))])


def of_base(session: Session, project: ProjectRecord) -> DiskUse:
    """What was frozen of a project for all of its capsules."""
    pool = Pool(session.pool(project.id))
    if not pool.layers.is_dir():
        return DiskUse()
    frozen = [name for name in pool.all() if not is_changed_inside(name)]
    return total([of_layers(pool, frozen), measure(pool.history)])


def of_home(session: Session) -> DiskUse:
    """Everything below Atoll's home."""
    parts = []
    for project in session.store.projects():
        pool = Pool(session.pool(project.id))
        if pool.layers.is_dir():
            parts += [of_layers(pool, pool.all()), measure(pool.history)]
    for place in session.home.iterdir():
        if place.name != "pools":
            parts.append(measure(place) if place.is_dir() else DiskUse(_blocks(place)))
    return total(parts)


def _blocks(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.lstat().st_blocks * _BLOCK_BYTES
    return 0
