"""Dependency layers: what git ignores and a capsule needs, frozen once and refreshed by delta.

`carried.json` in the pool says what was frozen last. Its fingerprints tell cheaply whether that
still stands; where they do not, one walk finds what changed, and only that is copied.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from atoll.drivers.layers.carry import dirty_paths, find_carried, skipper
from atoll.drivers.layers.fingerprint import REST, ROOT, fingerprint
from atoll.drivers.layers.pool import WORKSPACE, Layer, Pool
from atoll.host import copying, files, trees
from atoll.host.trees import LeftOut, Manifest
from atoll.model.plan import Ground

_FILE = "carried.json"
_DEEPEST = 6
"""Deltas are stacked this high; then the directory is copied whole again."""
_WHOLE = 0.5
"""A delta that holds more of the files than this is no delta any more."""

Tell = Callable[[str, int, int, int, int], None]
"""Hears (what is frozen, files done, files in all, bytes done, bytes in all)."""


class Part(NamedTuple):
    """One ignored directory in the root, or all other ignored entries together."""

    name: str
    layers: tuple[str, ...]
    stamp: str


class Carried(NamedTuple):
    ground: str
    """Which settings it was chosen by."""
    root: str
    parts: tuple[Part, ...]
    rest: tuple[str, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(layer for part in self.parts for layer in part.layers)

    @property
    def directories(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts if part.name != REST)


def load_carried(pool: Pool) -> Carried | None:
    content = files.read_regular(pool.root / _FILE, limit_bytes=1 << 28)
    try:
        raw: dict[str, Any] = json.loads(content or b"null") or {}
        return Carried(
            ground=raw["ground"],
            root=raw["root"],
            parts=tuple(Part(name, tuple(layers), stamp) for name, layers, stamp in raw["parts"]),
            rest=tuple(raw["rest"]),
            left_out=tuple(LeftOut(*entry) for entry in raw["left_out"]),
        )
    except (ValueError, KeyError, TypeError):
        # Torn, or from before: what it named is frozen again, and found to be there already.
        return None


def find_fresh(pool: Pool, checkout: str, ground: Ground) -> Carried | None:
    """What was frozen last, if it still stands by all that a few stats can tell."""
    known = load_carried(pool)
    if known is None or known.ground != _key(ground):
        return None
    stamps = fingerprint(checkout, known.directories, known.rest)
    for part in known.parts:
        if stamps.get(part.name) != part.stamp or any(pool.find(x) is None for x in part.layers):
            return None
    return known if stamps[ROOT] == known.root else None


def freeze_carried(
    pool: Pool,
    checkout: str,
    ground: Ground,
    *,
    deltas: bool,
    tell: Tell | None = None,
    thorough: bool = False,
) -> Carried:
    """Brings the layers up to date. `thorough` walks also where the stamps say that all is well."""
    home = str(pool.root.parents[1])
    before = load_carried(pool)
    found = find_carried(checkout, carry=ground.carry, never=ground.never, home=home)
    stamps = fingerprint(checkout, found.directories, found.rest)
    skip = skipper(checkout, carry=ground.carry, never=ground.never, home=home)
    is_same = before is not None and before.ground == _key(ground)
    known = {part.name: part for part in before.parts} if before is not None and is_same else {}
    wanted: dict[str, tuple[str, ...]] = {name: (name,) for name in found.directories}
    wanted |= {REST: found.rest} if found.rest else {}
    left_out, parts = list(found.left_out), []
    for name, below in wanted.items():
        old = known.get(name)
        if old is not None and not thorough and old.stamp == stamps[name] and _is_whole(pool, old):
            parts.append(old)
            left_out += [e for e in (before.left_out if before else ()) if _lies(e.path, below)]
            continue
        scan = trees.scan(Path(checkout), below=below, skip=skip)
        left_out += scan.left_out
        layers = _freeze_part(_Job(pool, checkout, deltas, tell), name, scan.entries, old)
        parts.append(Part(name=name, layers=layers, stamp=stamps[name]))
    made = Carried(
        ground=_key(ground),
        root=stamps[ROOT],
        parts=tuple(parts),
        rest=found.rest,
        left_out=tuple(dict.fromkeys(left_out)),
    )
    files.write_atomic(pool.root / _FILE, json.dumps(made._asdict()).encode())
    return made


def freeze_dirty(pool: Pool, checkout: str, commit: str, ground: Ground) -> Layer | None:
    """The owner's uncommitted and untracked changes; None when there are none."""
    home = str(pool.root.parents[1])
    dirty = dirty_paths(checkout, commit, carry=ground.carry, never=ground.never, home=home)
    if not dirty.changed and not dirty.removed:
        return None
    parents = {"/".join(path.split("/")[:-1]) for path in dirty.removed}
    scan = trees.scan(Path(checkout), below=[*dirty.changed, *sorted(parents - {""})])
    wanted = set(dirty.changed)
    entries = {p: s for p, s in scan.entries.items() if s.is_directory or p in wanted}
    changes = trees.Difference(changed=[p for p in dirty.changed if p in entries],
                               removed=list(dirty.removed))  # fmt: skip
    with pool.building() as place:
        _make_room(place)
        report = copying.copy_changes(Path(checkout), place / "tree" / WORKSPACE, changes, entries)
        about = f"{len(changes.changed)} changed, {len(changes.removed)} removed"
        layer = _describe(f"x{_content(report, changes, ())}", "dirty", report, about=about)
        return pool.find(layer.id) or pool.freeze(place, layer, digests=report.digests)


def _key(ground: Ground) -> str:
    return json.dumps([ground.carry, ground.never])


def _is_whole(pool: Pool, part: Part) -> bool:
    return all(pool.find(layer) is not None for layer in part.layers)


def _lies(path: str, below: tuple[str, ...]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in below)


class _Job(NamedTuple):
    """What it takes to freeze a part."""

    pool: Pool
    checkout: str
    deltas: bool
    tell: Tell | None


def _freeze_part(job: _Job, name: str, entries: Manifest, old: Part | None) -> tuple[str, ...]:
    pool, checkout, deltas, tell = job
    about = "other ignored files" if name == REST else name
    changes = None
    if old is not None and _is_whole(pool, old):
        changes = trees.difference(trees.load_manifest(_manifest(pool, old.layers[-1])), entries)
        if not changes.changed and not changes.removed:
            return old.layers
        many = len(changes.changed) > _WHOLE * len(entries)
        if many or not deltas or len(old.layers) > _DEEPEST:
            changes = None
    below = old.layers if old is not None and changes is not None else ()
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
            whole = {p: s for p, s in whole.items() if p not in set(report.vanished)}
        trees.save_manifest(place / "manifest", whole)
        digest = _content(report, changes, below)
        layer = _describe(f"d{digest}", "dependencies", report, about=about, below=below)
        made = pool.find(layer.id) or pool.freeze(place, layer, digests=report.digests)
    return made.stack


def _make_room(place: Path) -> None:
    """Copying makes its target itself, so that it gets the mode and times of the source."""
    (place / "tree").mkdir(exist_ok=True)


def _manifest(pool: Pool, layer: str) -> Path:
    return pool.layers / layer / "manifest"


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
