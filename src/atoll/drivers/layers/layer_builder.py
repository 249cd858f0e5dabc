"""Builds dependency layers and dirty layers: walks the checkout and copies only what changed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers.carry_selection import dirty_paths, find_carried, skipper, topmost
from atoll.drivers.layers.deltas import (
    DEEPEST,
    Occupied,
    describe,
    find_lowest,
    find_manifest,
    is_within,
    make_room,
    name_content,
)
from atoll.drivers.layers.dependency_layers import (
    NOT_WATCHED,
    DependencyLayer,
    DependencyLayers,
    WatchedChanges,
    is_whole,
    load_carried,
    save_carried,
    selection_key,
)
from atoll.drivers.layers.fingerprint import REST, ROOT, fingerprint
from atoll.drivers.layers.ignore_rules import (
    find_watched,
    freeze_own_rules,
    stamp_rules,
    stamp_settings,
)
from atoll.drivers.layers.pool import WORKSPACE, FreezeProgress, Layer, Pool
from atoll.drivers.layers.repository import Source
from atoll.drivers.layers.staged_changes import find_staged, write_staged
from atoll.host.tree import layer_copy, manifests
from atoll.host.tree.manifests import Manifest
from atoll.model.layers import LayerKind
from atoll.model.plan import FileSelection

_WHOLE = 0.5
"""A delta with a larger share of the files than this is replaced by a full copy."""


class BuildOrder(NamedTuple):
    """How layers are updated."""

    commit: str
    """The commit whose base they are for."""
    deltas: bool
    """Whether delta layers may be built."""
    thorough: bool = False
    """Whether parts are walked even if their fingerprints are current."""
    on_progress: FreezeProgress | None = None
    watched: WatchedChanges = NOT_WATCHED
    """The current position of the daemon's watch on the checkout."""


def freeze_carried(
    pool: Pool, checkout: str, selection: FileSelection, order: BuildOrder
) -> DependencyLayers:
    """Updates the dependency layers."""
    home = str(pool.root.parents[1])
    before = load_carried(pool)
    found = find_carried(checkout, carry=selection.carry, never=selection.never, home=home)
    watched = find_watched(checkout, [*found.directories, *found.rest])
    rules, settings = (
        stamp_rules(checkout, watched, order.commit),
        stamp_settings(checkout, watched),
    )
    stamps = fingerprint(checkout, found.directories, found.rest)
    skip = skipper(checkout, carry=selection.carry, never=selection.never, home=home)
    is_same = before is not None and before.ground == selection_key(selection)
    job = _Job(
        pool=pool,
        checkout=checkout,
        deltas=order.deltas,
        on_progress=order.on_progress,
        occupied=Occupied(checkout, order.commit, found.directories),
        skip=skip,
        before=before if before is not None and is_same else DependencyLayers(),
        thorough=order.thorough,
    )
    wanted: dict[str, tuple[str, ...]] = {name: (name,) for name in found.directories}
    wanted |= {REST: found.rest} if found.rest else {}
    left_out, parts = list(found.left_out), []
    for name, below in wanted.items():
        part, more = _renew(job, name, below, stamps[name])
        parts.append(part)
        left_out += more
    made = DependencyLayers(
        ground=selection_key(selection),
        root=stamps[ROOT],
        parts=tuple(parts),
        rest=found.rest,
        left_out=tuple(dict.fromkeys(left_out)),
        rules=rules,
        watched=watched,
        settings=settings,
        commit=order.commit,
        unignored=found.unignored,
        own_rules=freeze_own_rules(pool, checkout, found.unignored),
        watch=order.watched.watch,
        position=order.watched.position,
    )
    save_carried(pool, made)
    return made


def freeze_dirty(
    pool: Pool, source: Source, selection: FileSelection, *, git_layer: Layer, commit_layer: Layer
) -> Layer | None:
    """Freezes uncommitted, staged and untracked changes; None when there are none."""
    home, checkout = str(pool.root.parents[1]), source.checkout
    dirty = dirty_paths(
        checkout, source.commit, carry=selection.carry, never=selection.never, home=home
    )
    staged = find_staged(checkout, source.commit, dirty, selection)
    if not dirty.changed and not dirty.removed and not staged.digest():
        return None
    parents = {"/".join(path.split("/")[:-1]) for path in dirty.removed}
    # No recursion: changed paths are files, and of the others only the directories count.
    scan = manifests.scan(
        Path(checkout), below=[*dirty.changed, *sorted(parents - {""})], skip=lambda *_: "unwanted"
    )
    wanted = set(dirty.changed)
    entries = {p: s for p, s in scan.entries.items() if s.is_directory or p in wanted}
    changes = manifests.Difference(changed=[p for p in dirty.changed if p in entries],
                               removed=list(dirty.removed))  # fmt: skip
    with pool.building() as place:
        make_room(place)
        report = layer_copy.copy_changes(
            Path(checkout), place / "tree" / WORKSPACE, changes, entries
        )
        about = f"{len(changes.changed)} changed, {len(changes.removed)} removed"
        # The index fits the stat data of one commit layer.
        below = (commit_layer.id, staged.digest()) if staged.digest() else ()
        layer = describe(
            LayerKind.DIRTY.layer(name_content(report, changes, below)),
            "dirty",
            report,
            about=about,
        )
        known = pool.find(layer.id)
        if known is not None or not staged.digest():
            return known or pool.freeze(place, layer, digests=report.digests)
        write_staged(
            place, staged, repository=source.repository,
            git_dir=pool.tree(git_layer.id) / WORKSPACE / ".git",
            index=pool.tree(commit_layer.id) / WORKSPACE / ".git" / "index",
        )  # fmt: skip
        return pool.freeze(place, layer)


class _Job(NamedTuple):
    """The inputs for freezing parts."""

    pool: Pool
    checkout: str
    deltas: bool
    on_progress: FreezeProgress | None
    occupied: Occupied
    skip: manifests.Skip
    before: DependencyLayers
    """The latest layers with the same settings."""
    thorough: bool


class _Former(NamedTuple):
    """A part as frozen last."""

    layers: tuple[str, ...]
    entries: Manifest | None
    """None if no longer known, so that everything must be copied again."""
    hidden: tuple[str, ...] = ()


_NOTHING = _Former((), None)


def _renew(
    job: _Job, name: str, below: tuple[str, ...], stamp: str
) -> tuple[DependencyLayer, list[manifests.LeftOut]]:
    """The part in its current state, and what is left out of it."""
    old = next((part for part in job.before.parts if part.name == name), None)
    if old is not None and job.occupied.is_hidden_by(old):
        old = None
    if old is not None and not job.thorough and old.stamp == stamp and is_whole(job.pool, old):
        return old, [entry for entry in job.before.left_out if is_within(entry.path, below)]
    former = _NOTHING
    if old is not None:
        former = _Former(old.layers, find_manifest(job.pool, old.layers), old.hidden or ())
    scan = manifests.scan(Path(job.checkout), below=below, skip=job.skip, known=former.entries)
    layers, hidden = _freeze_part(job, name, scan.entries, former)
    return DependencyLayer(name=name, layers=layers, stamp=stamp, hidden=hidden), scan.left_out


def _freeze_part(
    job: _Job, name: str, entries: Manifest, former: _Former
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The layers of a part, and the paths that its deltas hide."""
    pool, checkout, on_progress = job.pool, job.checkout, job.on_progress
    about = "other ignored files" if name == REST else name
    changes = None
    if former.entries is not None:
        changes = manifests.difference(former.entries, entries, strict=True)
        is_same = not changes.changed and not changes.removed
        if is_same and not (job.thorough and job.deltas and len(former.layers) > DEEPEST // 2):
            return former.layers, former.hidden
        if is_same or len(former.layers) > DEEPEST:
            # One delta, relative to the full copy, replaces all.
            lowest = find_lowest(pool, former.layers, entries)
            former = _Former(former.layers[:1], lowest)
            return _freeze_part(job, name, entries, former)
        many = len(changes.changed) > _WHOLE * len(entries)
        if many or not job.deltas or job.occupied.meets(topmost(changes.removed), name):
            changes = None
    below = former.layers if changes is not None else ()
    hidden = () if changes is None else (*former.hidden, *topmost(changes.removed))
    chosen = entries if changes is None else {p: entries[p] for p in changes.changed}
    files_all = sum(1 for stamp in chosen.values() if not stamp.is_directory)
    bytes_all = sum(stamp.size for stamp in chosen.values() if stamp.is_file)

    def progress(files_done: int, bytes_done: int) -> None:
        if on_progress is not None:
            on_progress(about, files_done, files_all, bytes_done, bytes_all)

    with pool.building() as place:
        make_room(place)
        target, source = place / "tree" / WORKSPACE, Path(checkout)
        if changes is None:
            report = layer_copy.copy_entries(source, target, entries, progress=progress)
            whole = report.manifest
        else:
            report = layer_copy.copy_changes(source, target, changes, entries, progress=progress)
            whole = {**entries, **report.manifest}
            vanished = set(report.vanished)
            whole = {p: s for p, s in whole.items() if p not in vanished}
        manifests.save_manifest(place / "manifest", whole)
        digest = name_content(report, changes, below, strict=True)
        layer = describe(
            LayerKind.DEPENDENCIES.layer(digest), "dependencies", report, about=about, below=below
        )
        made = pool.find(layer.id) or pool.freeze(place, layer, digests=report.digests)
    return made.stack, hidden
