"""The time line of a capsule: its points, with what changed up to each."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.engine.session import Session
from atoll.engine.snapshots import require_layers
from atoll.model.state import Capsule, Snapshot


class Moment(NamedTuple):
    snapshot: Snapshot
    files: int
    """How many were written since the point before."""
    removed: int
    bytes: int
    paths: tuple[str, ...]
    """Some of them, as the project names them."""


def moments(session: Session, capsule: Capsule, *, count: int | None = None) -> list[Moment]:
    """The latest `count` points, the oldest first."""
    pool = Pool(require_layers(session, capsule).pool)
    found = session.store.snapshots(capsule)
    chosen = found if count is None else found[-count:]
    seen: set[str] = set()
    for snapshot in found[: len(found) - len(chosen)]:
        seen |= set(snapshot.layers)
    told = []
    for snapshot in chosen:
        fresh = [layer for layer in snapshot.layers if layer[0] in "us" and layer not in seen]
        told.append(_moment(snapshot, [pool.tree(layer) for layer in fresh]))
        seen |= set(snapshot.layers)
    return told


def _moment(snapshot: Snapshot, trees: list[Path]) -> Moment:
    from atoll.host import overlays  # noqa: PLC0415 - only for this one verb

    changes = [overlays.changes(tree) for tree in trees if tree.is_dir()]
    paths = [path for change in changes for path in change.paths]
    inner = [path.removeprefix(f"{WORKSPACE}/") for path in paths]
    shown = [path for path in inner if not path.startswith((".git/", "home/", "tmp/"))]
    return Moment(
        snapshot=snapshot,
        files=sum(change.files for change in changes),
        removed=sum(change.removed for change in changes),
        bytes=sum(change.bytes for change in changes),
        paths=tuple(shown),
    )
