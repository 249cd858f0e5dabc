"""Makes dependency layers and dirty layers: walks, copies what changed, and only that."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers.carried import (
    NOT_WATCHED,
    Carried,
    Part,
    Watched,
    ground_key,
    is_whole,
    load_carried,
    save_carried,
)
from atoll.drivers.layers.carry import dirty_paths, find_carried, skipper
from atoll.drivers.layers.deltas import (
    DEEPEST,
    describe,
    find_manifest,
    lies,
    make_room,
    name_content,
)
from atoll.drivers.layers.fingerprint import REST, ROOT, fingerprint
from atoll.drivers.layers.pool import WORKSPACE, Layer, Pool, Tell
from atoll.host import copying, manifests, trees
from atoll.host.trees import Manifest
from atoll.model.plan import Ground

_WHOLE = 0.5
"""A delta that holds more of the files than this is no delta any more."""


class Order(NamedTuple):
    """How layers are brought up to date."""

    deltas: bool
    """Whether a layer may hold only what has changed."""
    thorough: bool = False
    """Whether parts are walked whose stamps say that all is well."""
    tell: Tell | None = None
    watched: Watched = NOT_WATCHED
    """Where the daemon's watch on the checkout is now."""


def freeze_carried(pool: Pool, checkout: str, ground: Ground, order: Order) -> Carried:
    """Brings the layers up to date."""
    home = str(pool.root.parents[1])
    before = load_carried(pool)
    found = find_carried(checkout, carry=ground.carry, never=ground.never, home=home)
    stamps = fingerprint(checkout, found.directories, found.rest)
    skip = skipper(checkout, carry=ground.carry, never=ground.never, home=home)
    is_same = before is not None and before.ground == ground_key(ground)
    known = {part.name: part for part in before.parts} if before is not None and is_same else {}
    wanted: dict[str, tuple[str, ...]] = {name: (name,) for name in found.directories}
    wanted |= {REST: found.rest} if found.rest else {}
    left_out, parts = list(found.left_out), []
    for name, below in wanted.items():
        old = known.get(name)
        if (
            old is not None
            and not order.thorough
            and old.stamp == stamps[name]
            and is_whole(pool, old)
        ):
            parts.append(old)
            left_out += [e for e in (before.left_out if before else ()) if lies(e.path, below)]
            continue
        entries = None if old is None else find_manifest(pool, old.layers)
        former = _NOTHING if old is None else _Former(old.layers, entries)
        scan = trees.scan(Path(checkout), below=below, skip=skip, known=former.entries)
        left_out += scan.left_out
        layers = _freeze_part(
            _Job(pool, checkout, order.deltas, order.tell, order.thorough),
            name,
            scan.entries,
            former,
        )
        parts.append(Part(name=name, layers=layers, stamp=stamps[name]))
    made = Carried(
        ground=ground_key(ground),
        root=stamps[ROOT],
        parts=tuple(parts),
        rest=found.rest,
        left_out=tuple(dict.fromkeys(left_out)),
        watch=order.watched.watch,
        position=order.watched.position,
    )
    save_carried(pool, made)
    return made


def freeze_dirty(pool: Pool, checkout: str, commit: str, ground: Ground) -> Layer | None:
    """The owner's uncommitted and untracked changes; None when there are none."""
    home = str(pool.root.parents[1])
    dirty = dirty_paths(checkout, commit, carry=ground.carry, never=ground.never, home=home)
    if not dirty.changed and not dirty.removed:
        return None
    parents = {"/".join(path.split("/")[:-1]) for path in dirty.removed}
    # Nothing below is wanted: changed paths are files, and of the rest only the directories.
    scan = trees.scan(
        Path(checkout), below=[*dirty.changed, *sorted(parents - {""})], skip=lambda *_: "unwanted"
    )
    wanted = set(dirty.changed)
    entries = {p: s for p, s in scan.entries.items() if s.is_directory or p in wanted}
    changes = trees.Difference(changed=[p for p in dirty.changed if p in entries],
                               removed=list(dirty.removed))  # fmt: skip
    with pool.building() as place:
        make_room(place)
        report = copying.copy_changes(Path(checkout), place / "tree" / WORKSPACE, changes, entries)
        about = f"{len(changes.changed)} changed, {len(changes.removed)} removed"
        layer = describe(f"x{name_content(report, changes, ())}", "dirty", report, about=about)
        return pool.find(layer.id) or pool.freeze(place, layer, digests=report.digests)


class _Job(NamedTuple):
    """What it takes to freeze a part."""

    pool: Pool
    checkout: str
    deltas: bool
    tell: Tell | None
    thorough: bool


class _Former(NamedTuple):
    """What a part was when it was last frozen."""

    layers: tuple[str, ...]
    entries: Manifest | None
    """None when that cannot be told any more, so that all must be copied anew."""


_NOTHING = _Former((), None)


def _freeze_part(job: _Job, name: str, entries: Manifest, former: _Former) -> tuple[str, ...]:
    pool, checkout, deltas, tell, _ = job
    about = "other ignored files" if name == REST else name
    changes = None
    if former.entries is not None:
        changes = trees.difference(former.entries, entries)
        is_same = not changes.changed and not changes.removed
        if is_same and not (job.thorough and deltas and len(former.layers) > DEEPEST // 2):
            return former.layers
        if is_same or len(former.layers) > DEEPEST:
            # One delta takes the place of all: what changed since the directory was copied whole.
            lowest = former.layers[:1]
            former = _Former(lowest, find_manifest(pool, lowest))
            return _freeze_part(job, name, entries, former)
        if len(changes.changed) > _WHOLE * len(entries) or not deltas:
            changes = None
    below = former.layers if changes is not None else ()
    chosen = entries if changes is None else {p: entries[p] for p in changes.changed}
    files_all = sum(1 for stamp in chosen.values() if not stamp.is_directory)
    bytes_all = sum(stamp.size for stamp in chosen.values() if stamp.is_file)

    def progress(files_done: int, bytes_done: int) -> None:
        if tell is not None:
            tell(about, files_done, files_all, bytes_done, bytes_all)

    with pool.building() as place:
        make_room(place)
        target, source = place / "tree" / WORKSPACE, Path(checkout)
        if changes is None:
            report = copying.copy_entries(source, target, entries, progress=progress)
            whole = report.manifest
        else:
            report = copying.copy_changes(source, target, changes, entries, progress=progress)
            whole = {**entries, **report.manifest}
            vanished = set(report.vanished)
            whole = {p: s for p, s in whole.items() if p not in vanished}
        manifests.save_manifest(place / "manifest", whole)
        digest = name_content(report, changes, below)
        layer = describe(f"d{digest}", "dependencies", report, about=about, below=below)
        made = pool.find(layer.id) or pool.freeze(place, layer, digests=report.digests)
    return made.stack
