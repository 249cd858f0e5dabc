"""Updates dependency layers without a walk, from a list of changed files.

The list comes from the daemon's watch on the checkout. Only changes of single files are handled
here. Everything else is left to a walk: changed directories, ignore rules, newly ignored files,
and possible secrets.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

from atoll.drivers.layers.carry_selection import skipper
from atoll.drivers.layers.deltas import (
    CHANGES,
    DEEPEST,
    Occupied,
    describe,
    is_within,
    make_room,
    name_content,
)
from atoll.drivers.layers.dependency_layers import (
    DependencyLayer,
    DependencyLayers,
    WatchedChanges,
    is_whole,
    save_carried,
    selection_key,
)
from atoll.drivers.layers.fingerprint import REST, ROOT, fingerprint
from atoll.drivers.layers.ignore_rules import stamp_rules, stamp_settings
from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.drivers.layers.repository import Source
from atoll.host import git
from atoll.host.tree import layer_copy, manifests
from atoll.host.tree.manifests import Manifest, Stamp
from atoll.model import secretfiles
from atoll.model.errors import AtollError
from atoll.model.layers import LayerKind
from atoll.model.plan import FileSelection

_FEW = 256
"""With more changed files than this, a walk is about as fast."""
_QUIET = 64
"""Up to this many changes of files that are not carried are reported again instead of recorded."""
_MOST_MOVED = 20_000
"""With more changed paths between two commits than this, a walk is about as fast."""
_RULES = frozenset({".gitignore", "atoll.toml"})
_REMOVED = Stamp(0, 0, 0, 0, 0)


def refresh_carried(
    pool: Pool,
    source: Source,
    selection: FileSelection,
    known: DependencyLayers,
    watched: WatchedChanges,
) -> DependencyLayers | None:
    """The layers with the changes in `watched`; None when a walk is needed."""
    checkout, paths = source.checkout, watched.paths
    if paths is None or len(paths) > _FEW or known.ground != selection_key(selection):
        return None
    by_part = _sort(known, paths) if _are_rules_kept(source, known, paths) else None
    # Taken before anything is copied, so that later changes get another fingerprint.
    stamps = fingerprint(checkout, known.directories, known.rest)
    in_root = any("/" not in path.rstrip("/") for path in paths)
    # A fingerprint of the root that changes without a reported change needs a walk, too.
    is_unexplained = stamps[ROOT] != known.root and not in_root
    if by_part is None or is_unexplained:
        return None
    if _may_be_carried(checkout, known, by_part.pop(ROOT, [])):
        return None
    rules = stamp_rules(checkout, known.watched, source.commit)
    skip = skipper(
        checkout, carry=selection.carry, never=selection.never, home=str(pool.root.parents[1])
    )
    occupied = Occupied(checkout, source.commit, known.directories)
    job = _Job(pool, checkout, skip, known.rest, occupied)
    parts = []
    for part in known.parts:
        is_explained = stamps[part.name] == part.stamp or _is_explained(part, known, paths)
        fresh = _renew(job, part, by_part.get(part.name), is_explained=is_explained)
        if fresh is None:
            return None
        parts.append(fresh._replace(stamp=stamps[part.name]))
    is_quiet = not by_part and len(paths) <= _QUIET and known.commit == source.commit
    if is_quiet and tuple(parts) == known.parts:
        return known
    made = known._replace(
        root=stamps[ROOT], parts=tuple(parts), rules=rules, commit=source.commit,
        watch=watched.watch, position=watched.position,
    )  # fmt: skip
    save_carried(pool, made)
    return made


def _renew(
    job: _Job, part: DependencyLayer, paths: list[str] | None, *, is_explained: bool
) -> DependencyLayer | None:
    """The part with these changes; None when a walk is needed."""
    if not is_whole(job.pool, part):
        return None
    if paths is not None:
        return _freeze_files(job, part, paths)
    # Otherwise something changed that the watch did not report.
    return part if is_explained else None


def _are_rules_kept(source: Source, known: DependencyLayers, paths: Sequence[str]) -> bool:
    """Whether the same entries are ignored as before, and no carried one is now tracked."""
    if known.settings != stamp_settings(source.checkout, known.watched):
        return False
    if known.commit == source.commit:
        # A changed fingerprint without a reported change: the watch missed something.
        now = stamp_rules(source.checkout, known.watched, source.commit)
        return bool(paths) or known.rules == now
    # Atoll's own ignore rules must match what is tracked: rare, and left to a walk.
    return bool(known.commit) and known.own_rules is None and _is_apart(source, known)


def _is_apart(source: Source, known: DependencyLayers) -> bool:
    """Whether the changes since the previous commit affect no carried path."""
    try:
        listed = git.git(
            "diff", "--no-ext-diff", "--no-renames", "--name-only", "-z",
            known.commit, source.commit, cwd=source.checkout,
        )  # fmt: skip
    except AtollError:
        # The previous commit no longer exists.
        return False
    moved = [path for path in listed.text.split("\0") if path]
    carried = (*known.directories, *known.rest, *(entry.path for entry in known.left_out))
    if len(moved) > _MOST_MOVED or any(
        os.path.basename(path) in _RULES or is_within(path, carried) for path in moved
    ):
        return False
    occupied = Occupied(source.checkout, source.commit, known.directories)
    return not any(occupied.is_hidden_by(part) for part in known.parts)


def _is_explained(part: DependencyLayer, known: DependencyLayers, paths: Sequence[str]) -> bool:
    """Whether other files in the same directories explain the changed fingerprint."""
    if part.name != REST:
        return False
    beside = {os.path.dirname(path) for path in known.rest}
    return any(os.path.dirname(path.rstrip("/")) in beside for path in paths)


def _sort(known: DependencyLayers, paths: Sequence[str]) -> dict[str, list[str]] | None:
    """The paths by part, those outside all parts as `ROOT`; None when a walk is needed."""
    found: dict[str, list[str]] = {}
    left_out = [entry.path for entry in known.left_out]
    for path in paths:
        *above, name = path.rstrip("/").split("/")
        if name in _RULES or any(place.startswith(f"{path.rstrip('/')}/") for place in known.rest):
            return None
        if any(part == ".git" or secretfiles.find_directory_rule(part) for part in (*above, name)):
            return None
        if path in left_out:
            return None
        is_directory = path.endswith("/")
        if is_within(path, left_out):
            continue
        if path.split("/")[0] in known.directories or is_within(path, known.rest):
            if is_directory:
                return None
            part = above[0] if above and above[0] in known.directories else REST
            found.setdefault(part, []).append(path)
        else:
            found.setdefault(ROOT, []).append(path)
    return found


def _may_be_carried(checkout: str, known: DependencyLayers, paths: list[str]) -> bool:
    """Whether a path must be carried, or causes another one to be, though no part has it yet: a new
    directory, a file in a directory without tracked files, an ignored file.
    """
    there = [path for path in paths if os.path.lexists(f"{checkout}/{path}")]
    if not there:
        return False
    tracked = {"", *known.watched}
    if any(path.endswith("/") or os.path.dirname(path) not in tracked for path in there):
        return True
    answer = git.git(
        "--literal-pathspecs", "ls-files", "--others", "--ignored", "--exclude-standard",
        "--directory", "-z", "--", *there, cwd=checkout,
    )  # fmt: skip
    return bool(answer.text)


class _Job(NamedTuple):
    pool: Pool
    checkout: str
    skip: manifests.Skip
    rest: tuple[str, ...]
    occupied: Occupied


class _Entry(NamedTuple):
    """The subset of `os.DirEntry` that the rules use."""

    name: str
    status: os.stat_result

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        del follow_symlinks
        return self.status


def _freeze_files(job: _Job, part: DependencyLayer, paths: list[str]) -> DependencyLayer | None:
    """The part with one more layer that holds these files; None when a walk is needed."""
    pool, checkout = job.pool, job.checkout
    if len(part.layers) > DEEPEST:
        return None
    entries = manifests.scan(Path(checkout), below=_with_parents(paths), skip=_nothing).entries
    changed = [path for path in paths if path in entries]
    removed = [path for path in paths if path not in entries]
    if any(p in job.rest or p.rpartition("/")[0] not in entries for p in removed):
        return None
    if part.hidden is None or job.occupied.meets(removed, part.name):
        return None
    if any(_needs_walk(job, path, entries[path]) for path in changed):
        return None
    changes = manifests.Difference(changed, removed)
    with pool.building() as place:
        make_room(place)
        target = place / "tree" / WORKSPACE
        report = layer_copy.copy_changes(Path(checkout), target, changes, entries)
        if report.vanished:
            return None
        written: Manifest = {**report.manifest, **dict.fromkeys(removed, _REMOVED)}
        manifests.save_manifest(place / CHANGES, written)
        digest = name_content(report, changes, part.layers, strict=True)
        about = "other ignored files" if part.name == REST else part.name
        layer = describe(
            LayerKind.DEPENDENCIES.layer(digest),
            "dependencies",
            report,
            about=about,
            below=part.layers,
        )
        made = pool.find(layer.id) or pool.freeze(place, layer, digests=report.digests)
    return part._replace(layers=made.stack, hidden=(*part.hidden, *removed))


def _with_parents(paths: list[str]) -> list[str]:
    """The paths, and the parent directories of those that may have been removed."""
    return [*paths, *sorted({path.rpartition("/")[0] for path in paths} - {""})]


def _nothing(path: str, entry: os.DirEntry[str]) -> str:
    del path, entry
    return "unwanted"


def _needs_walk(job: _Job, path: str, stamp: Stamp) -> bool:
    if stamp.is_directory or (stamp.is_file and stamp.links > 1):
        # A hard link has changed under its other names as well, which the watch does not report.
        return True
    try:
        status = os.lstat(f"{job.checkout}/{path}")
    except OSError:
        return True
    entry = cast("os.DirEntry[str]", _Entry(path.rpartition("/")[2], status))
    return manifests.special_kind(status.st_mode) is not None or job.skip(path, entry) is not None
