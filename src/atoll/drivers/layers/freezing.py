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
from atoll.drivers.layers.carrylist import topmost
from atoll.drivers.layers.deltas import (
    DEEPEST,
    describe,
    find_lowest,
    find_manifest,
    lies,
    make_room,
    name_content,
)
from atoll.drivers.layers.fingerprint import REST, ROOT, fingerprint
from atoll.drivers.layers.ignore_rules import find_watched, stamp_rules, stamp_settings
from atoll.drivers.layers.own_rules import freeze_own_rules
from atoll.drivers.layers.pool import WORKSPACE, Layer, Pool, Tell
from atoll.drivers.layers.repository import Source
from atoll.drivers.layers.staged import find_staged, write_staged
from atoll.drivers.layers.whiteouts import Occupied
from atoll.host import copying, manifests, trees
from atoll.host.trees import Manifest
from atoll.model.plan import Ground

_WHOLE = 0.5
"""A delta that holds more of the files than this is no delta any more."""


class Order(NamedTuple):
    """How layers are brought up to date."""

    commit: str
    """The commit whose base they are for."""
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
    watched = find_watched(checkout, [*found.directories, *found.rest])
    rules, settings = (
        stamp_rules(checkout, watched, order.commit),
        stamp_settings(checkout, watched),
    )
    stamps = fingerprint(checkout, found.directories, found.rest)
    skip = skipper(checkout, carry=ground.carry, never=ground.never, home=home)
    is_same = before is not None and before.ground == ground_key(ground)
    job = _Job(
        pool=pool,
        checkout=checkout,
        deltas=order.deltas,
        tell=order.tell,
        occupied=Occupied(checkout, order.commit, found.directories),
        skip=skip,
        before=before if before is not None and is_same else Carried(),
        thorough=order.thorough,
    )
    wanted: dict[str, tuple[str, ...]] = {name: (name,) for name in found.directories}
    wanted |= {REST: found.rest} if found.rest else {}
    left_out, parts = list(found.left_out), []
    for name, below in wanted.items():
        part, more = _renew(job, name, below, stamps[name])
        parts.append(part)
        left_out += more
    made = Carried(
        ground=ground_key(ground),
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
    pool: Pool, source: Source, ground: Ground, *, git_layer: Layer, commit_layer: Layer
) -> Layer | None:
    """The owner's uncommitted, staged and untracked changes; None when there are none."""
    home, checkout = str(pool.root.parents[1]), source.checkout
    dirty = dirty_paths(checkout, source.commit, carry=ground.carry, never=ground.never, home=home)
    staged = find_staged(checkout, source.commit, dirty, ground)
    if not dirty.changed and not dirty.removed and not staged.digest():
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
        # An index is made for the stat data of one commit layer.
        below = (commit_layer.id, staged.digest()) if staged.digest() else ()
        layer = describe(f"x{name_content(report, changes, below)}", "dirty", report, about=about)
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
    """What it takes to freeze a part."""

    pool: Pool
    checkout: str
    deltas: bool
    tell: Tell | None
    occupied: Occupied
    skip: trees.Skip
    before: Carried
    """What was frozen last by the same settings."""
    thorough: bool


class _Former(NamedTuple):
    """What a part was when it was last frozen."""

    layers: tuple[str, ...]
    entries: Manifest | None
    """None when that cannot be told any more, so that all must be copied anew."""
    hidden: tuple[str, ...] = ()


_NOTHING = _Former((), None)


def _renew(
    job: _Job, name: str, below: tuple[str, ...], stamp: str
) -> tuple[Part, list[trees.LeftOut]]:
    """A part as it is now, and what stays out of it."""
    old = next((part for part in job.before.parts if part.name == name), None)
    if old is not None and job.occupied.is_hidden_by(old):
        old = None
    if old is not None and not job.thorough and old.stamp == stamp and is_whole(job.pool, old):
        return old, [entry for entry in job.before.left_out if lies(entry.path, below)]
    former = _NOTHING
    if old is not None:
        former = _Former(old.layers, find_manifest(job.pool, old.layers), old.hidden or ())
    scan = trees.scan(Path(job.checkout), below=below, skip=job.skip, known=former.entries)
    layers, hidden = _freeze_part(job, name, scan.entries, former)
    return Part(name=name, layers=layers, stamp=stamp, hidden=hidden), scan.left_out


def _freeze_part(
    job: _Job, name: str, entries: Manifest, former: _Former
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The layers of a part, and what the deltas among them hide."""
    pool, checkout, tell = job.pool, job.checkout, job.tell
    about = "other ignored files" if name == REST else name
    changes = None
    if former.entries is not None:
        changes = trees.difference(former.entries, entries, strict=True)
        is_same = not changes.changed and not changes.removed
        if is_same and not (job.thorough and job.deltas and len(former.layers) > DEEPEST // 2):
            return former.layers, former.hidden
        if is_same or len(former.layers) > DEEPEST:
            # One delta takes the place of all: what changed since the directory was copied whole.
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
        digest = name_content(report, changes, below, strict=True)
        layer = describe(f"d{digest}", "dependencies", report, about=about, below=below)
        made = pool.find(layer.id) or pool.freeze(place, layer, digests=report.digests)
    return made.stack, hidden
