"""Makes dependency layers and dirty layers: walks, copies what changed, and only that."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers.carried import (
    Carried,
    Part,
    ground_key,
    is_whole,
    load_carried,
    save_carried,
)
from atoll.drivers.layers.carry import dirty_paths, find_carried, skipper
from atoll.drivers.layers.carrylist import topmost
from atoll.drivers.layers.fingerprint import REST, ROOT, fingerprint
from atoll.drivers.layers.ignore_rules import find_watched, stamp_rules
from atoll.drivers.layers.own_rules import freeze_own_rules
from atoll.drivers.layers.pool import WORKSPACE, Layer, Pool, Tell
from atoll.drivers.layers.repository import Source
from atoll.drivers.layers.staged import find_staged, write_staged
from atoll.drivers.layers.whiteouts import Occupied
from atoll.host import copying, manifests, trees
from atoll.host.trees import Manifest
from atoll.model.errors import StateError
from atoll.model.plan import Ground

_DEEPEST = 6
"""Deltas are stacked this high; then the directory is copied whole again."""
_WHOLE = 0.5
"""A delta that holds more of the files than this is no delta any more."""


def freeze_carried(  # noqa: PLR0913 - what, of what, for what, and how it is told
    pool: Pool,
    checkout: str,
    ground: Ground,
    *,
    commit: str,
    deltas: bool,
    tell: Tell | None = None,
    thorough: bool = False,
) -> Carried:
    """Brings the layers up to date for a base of `commit`.

    `thorough` walks also where the stamps say that all is well.
    """
    home = str(pool.root.parents[1])
    before = load_carried(pool)
    found = find_carried(checkout, carry=ground.carry, never=ground.never, home=home)
    watched = find_watched(checkout, [*found.directories, *found.rest])
    rules = stamp_rules(checkout, watched, commit)
    stamps = fingerprint(checkout, found.directories, found.rest)
    skip = skipper(checkout, carry=ground.carry, never=ground.never, home=home)
    is_same = before is not None and before.ground == ground_key(ground)
    job = _Job(
        pool=pool,
        checkout=checkout,
        deltas=deltas,
        tell=tell,
        occupied=Occupied(checkout, commit, found.directories),
        skip=skip,
        before=before if before is not None and is_same else Carried(),
        thorough=thorough,
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
        unignored=found.unignored,
        own_rules=freeze_own_rules(pool, checkout, found.unignored),
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
        _make_room(place)
        report = copying.copy_changes(Path(checkout), place / "tree" / WORKSPACE, changes, entries)
        about = f"{len(changes.changed)} changed, {len(changes.removed)} removed"
        # An index is made for the stat data of one commit layer.
        below = (commit_layer.id, staged.digest()) if staged.digest() else ()
        layer = _describe(f"x{_content(report, changes, below)}", "dirty", report, about=about)
        known = pool.find(layer.id)
        if known is not None or not staged.digest():
            return known or pool.freeze(place, layer, digests=report.digests)
        write_staged(
            place, staged, repository=source.repository,
            git_dir=pool.tree(git_layer.id) / WORKSPACE / ".git",
            index=pool.tree(commit_layer.id) / WORKSPACE / ".git" / "index",
        )  # fmt: skip
        return pool.freeze(place, layer)


def _lies(path: str, below: tuple[str, ...]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in below)


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
        return old, [entry for entry in job.before.left_out if _lies(entry.path, below)]
    former = _NOTHING
    if old is not None:
        former = _Former(old.layers, _find_manifest(job.pool, old), old.hidden or ())
    scan = trees.scan(Path(job.checkout), below=below, skip=job.skip, known=former.entries)
    layers, hidden = _freeze_part(job, name, scan.entries, former)
    return Part(name=name, layers=layers, stamp=stamp, hidden=hidden), scan.left_out


def _find_manifest(pool: Pool, part: Part) -> Manifest | None:
    if not is_whole(pool, part):
        return None
    try:
        return manifests.load_manifest(pool.layers / part.layers[-1] / "manifest")
    except StateError:
        return None


def _freeze_part(
    job: _Job, name: str, entries: Manifest, former: _Former
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The layers of a part, and what the deltas among them hide."""
    pool, checkout, tell = job.pool, job.checkout, job.tell
    about = "other ignored files" if name == REST else name
    changes = None
    if former.entries is not None:
        changes = trees.difference(former.entries, entries)
        if not changes.changed and not changes.removed:
            return former.layers, former.hidden
        many = len(changes.changed) > _WHOLE * len(entries)
        hides = job.occupied.meets(topmost(changes.removed), name)
        if many or hides or not job.deltas or len(former.layers) > _DEEPEST:
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
        _make_room(place)
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
        digest = _content(report, changes, below)
        layer = _describe(f"d{digest}", "dependencies", report, about=about, below=below)
        made = pool.find(layer.id) or pool.freeze(place, layer, digests=report.digests)
    return made.stack, hidden


def _make_room(place: Path) -> None:
    """Copying makes its target itself, so that it gets the mode and times of the source."""
    (place / "tree").mkdir(exist_ok=True)


def _content(
    report: copying.CopyReport, changes: trees.Difference | None, below: tuple[str, ...]
) -> str:
    """A name that says what the layer holds."""
    digest = hashlib.blake2b(digest_size=8)
    for path, stamp in sorted(report.manifest.items()):
        said = report.digests.get(path) or stamp.target or ""
        digest.update(
            f"{path}\0{stamp.mode}\0{stamp.mtime_ns}\0{said}\n".encode(errors="surrogateescape")
        )
    for path in changes.removed if changes is not None else ():
        digest.update(f"-{path}\n".encode(errors="surrogateescape"))
    digest.update(" ".join(below).encode())
    return digest.hexdigest()


def _describe(
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
