"""Brings dependency layers up to date without a walk, from the list of files that have changed.

The list comes from the daemon's watch on the checkout. Only changes of single files are made here,
where nothing but these files has to be looked at. Everything else is left to a walk: changed
directories, ignore rules, newly ignored files, whatever may be a secret.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

from atoll.drivers.layers.carried import Carried, Part, Watched, ground_key, is_whole, save_carried
from atoll.drivers.layers.carry import skipper
from atoll.drivers.layers.deltas import CHANGES, DEEPEST, describe, lies, make_room, name_content
from atoll.drivers.layers.fingerprint import REST, ROOT, fingerprint
from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.host import copying, git, manifests, trees
from atoll.host.trees import Manifest, Stamp
from atoll.model import secretfiles
from atoll.model.plan import Ground

_FEW = 256
"""With more changed files than this, a walk is not much slower."""
_QUIET = 64
"""As many changes of files that are not carried are told again rather than written down."""
_RULES = frozenset({".gitignore", "atoll.toml"})
_REMOVED = Stamp(0, 0, 0, 0, 0)


def refresh_carried(
    pool: Pool, checkout: str, ground: Ground, known: Carried, watched: Watched
) -> Carried | None:
    """The layers with the changes that `watched` lists; None when a walk is needed."""
    if watched.paths is None or len(watched.paths) > _FEW or known.ground != ground_key(ground):
        return None
    by_part = _sort(known, watched.paths)
    # Before anything is copied: what changes meanwhile has another stamp.
    stamps = fingerprint(checkout, known.directories, known.rest)
    in_root = any("/" not in path.rstrip("/") for path in watched.paths)
    # A stamp of the root that changes without a reported change there needs a walk, too.
    is_unexplained = stamps[ROOT] != known.root and not in_root
    if by_part is None or is_unexplained or _any_ignored(checkout, by_part.pop(ROOT, [])):
        return None
    skip = skipper(checkout, carry=ground.carry, never=ground.never, home=str(pool.root.parents[1]))
    parts = []
    for part in known.parts:
        paths = by_part.get(part.name)
        if paths is None:
            if stamps[part.name] != part.stamp and not _is_explained(part, known, watched.paths):
                # Something has changed that the watch does not know of.
                return None
            layers: tuple[str, ...] | None = part.layers
        else:
            layers = _freeze_files(_Job(pool, checkout, skip, known.rest), part, paths)
        if layers is None or not is_whole(pool, part):
            return None
        parts.append(part._replace(layers=layers, stamp=stamps[part.name]))
    if not by_part and len(watched.paths) <= _QUIET and tuple(parts) == known.parts:
        return known
    made = known._replace(
        root=stamps[ROOT], parts=tuple(parts), watch=watched.watch, position=watched.position
    )
    save_carried(pool, made)
    return made


def _is_explained(part: Part, known: Carried, paths: Sequence[str]) -> bool:
    """Whether the stamp has changed because of other files in the same directories."""
    if part.name != REST:
        return False
    beside = {os.path.dirname(path) for path in known.rest}
    return any(os.path.dirname(path.rstrip("/")) in beside for path in paths)


def _sort(known: Carried, paths: Sequence[str]) -> dict[str, list[str]] | None:
    """The paths by part, those outside of all parts as `ROOT`; None when a walk is needed."""
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
        if lies(path, left_out):
            continue
        if path.split("/")[0] in known.directories or lies(path, known.rest):
            if is_directory:
                return None
            part = above[0] if above and above[0] in known.directories else REST
            found.setdefault(part, []).append(path)
        else:
            found.setdefault(ROOT, []).append(path)
    return found


def _any_ignored(checkout: str, paths: list[str]) -> bool:
    """Whether one of the paths is for capsules, or holds what is, though no part has it yet."""
    there = [path for path in paths if os.path.lexists(f"{checkout}/{path}")]
    if not there:
        return False
    answer = git.git(
        "--literal-pathspecs", "ls-files", "--others", "--ignored", "--exclude-standard",
        "--directory", "-z", "--", *there, cwd=checkout,
    )  # fmt: skip
    return bool(answer.text)


class _Job(NamedTuple):
    pool: Pool
    checkout: str
    skip: trees.Skip
    rest: tuple[str, ...]


class _Entry(NamedTuple):
    """As much of a directory entry as rules ask for."""

    name: str
    status: os.stat_result

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        del follow_symlinks
        return self.status


def _freeze_files(job: _Job, part: Part, paths: list[str]) -> tuple[str, ...] | None:
    """The part's layers with one more that holds these files; None when a walk is needed."""
    pool, checkout = job.pool, job.checkout
    if len(part.layers) > DEEPEST:
        return None
    entries = trees.scan(Path(checkout), below=_with_parents(paths), skip=_nothing).entries
    changed = [path for path in paths if path in entries]
    removed = [path for path in paths if path not in entries]
    if any(p in job.rest or p.rpartition("/")[0] not in entries for p in removed):
        return None
    if any(_needs_walk(job, path, entries[path]) for path in changed):
        return None
    changes = trees.Difference(changed, removed)
    with pool.building() as place:
        make_room(place)
        target = place / "tree" / WORKSPACE
        report = copying.copy_changes(Path(checkout), target, changes, entries)
        if report.vanished:
            return None
        said: Manifest = {**report.manifest, **dict.fromkeys(removed, _REMOVED)}
        manifests.save_manifest(place / CHANGES, said)
        digest = name_content(report, changes, part.layers)
        about = "other ignored files" if part.name == REST else part.name
        layer = describe(f"d{digest}", "dependencies", report, about=about, below=part.layers)
        made = pool.find(layer.id) or pool.freeze(place, layer, digests=report.digests)
    return made.stack


def _with_parents(paths: list[str]) -> list[str]:
    """The paths, and the directories that held those of them that may be gone."""
    return [*paths, *sorted({path.rpartition("/")[0] for path in paths} - {""})]


def _nothing(path: str, entry: os.DirEntry[str]) -> str:
    del path, entry
    return "unwanted"


def _needs_walk(job: _Job, path: str, stamp: Stamp) -> bool:
    if stamp.is_directory or (stamp.is_file and stamp.links > 1):
        # A hard link has changed under its other names, too, and the watch does not say which.
        return True
    try:
        status = os.lstat(f"{job.checkout}/{path}")
    except OSError:
        return True
    entry = cast("os.DirEntry[str]", _Entry(path.rpartition("/")[2], status))
    return trees.special_kind(status.st_mode) is not None or job.skip(path, entry) is not None
