"""Cheap fingerprints of carried directories, from stats alone: no git, no content.

Equal fingerprints mean that no install or build tool has changed a directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

ROOT, REST = "", "/"
"""Keys of a fingerprint that are not directories."""

_SAMPLE = 240
"""How many directories are read for one fingerprint."""
_LISTINGS = 40
_MARKERS = (
    ".package-lock.json", ".modules.yaml", ".yarn-state.yml", ".yarn-integrity", "pyvenv.cfg",
    ".rustc_info.json", "CMakeCache.txt", ".ninja_log", "build.ninja", "composer/installed.json",
)  # fmt: skip
"""Files that install and build tools write last."""
_LOCKS = (
    r"package-lock\.json|npm-shrinkwrap\.json|yarn\.lock|pnpm-lock\.yaml|bun\.lockb?|deno\.lock"
    r"|(?:uv|pdm|poetry|Pipfile|Cargo|Gemfile|composer|mix|pubspec|flake|pixi)\.lock"
    r"|requirements.*\.txt|go\.sum|gradle\.lockfile|packages\.lock\.json|\.gitignore"
)
RESTLESS = frozenset({".cache", ".vite", ".vite-temp", "__pycache__"})
"""Caches that change with every build and that no capsule needs in their latest state."""


def fingerprint(checkout: str, directories: Sequence[str], rest: Sequence[str]) -> dict[str, str]:
    """Fingerprints of each directory, of `REST` and of the `ROOT`, from a few hundred stats each.

    Adding, removing or replacing a package changes one. A file edited in place, or an ignored
    entry in a directory that had none, may not change any: `find_carried` detects those.
    """
    locks = [entry.path for entry in _entries(checkout) if re.fullmatch(_LOCKS, entry.name)]
    stamps = {ROOT: _digest(map(_stats, [checkout, *locks]))}
    for name in directories:
        stamps[name] = _digest(_tree_stats(f"{checkout}/{name}", _SAMPLE))
    stamps[REST] = _digest(_rest_stats(checkout, rest))
    return stamps


def _rest_stats(checkout: str, rest: Sequence[str]) -> Iterator[object]:
    chosen = spread(rest, _SAMPLE)
    share = _SAMPLE // max(1, len(chosen))
    yield list(rest)
    for parent in spread(sorted({os.path.dirname(path) for path in rest}), _SAMPLE):
        yield _stats(f"{checkout}/{parent}")
    for path in chosen:
        yield from _tree_stats(f"{checkout}/{path}", share)


def _tree_stats(place: str, limit: int) -> Iterator[object]:
    """Stats of a directory, its markers and a bounded number of directories, two levels deep."""
    yield _stats(place)
    if limit < len(_MARKERS):
        return
    yield from (_stats(f"{place}/{marker}") for marker in _MARKERS)
    many: list[str] = []
    others: list[str] = []
    for path in _directories(place):
        # Scopes and directories of a package manager contain many packages.
        (many if path[len(place) + 1] in ".@" else others).append(path)
    many = many[:limit]
    chosen = [*many, *spread(others, limit - len(many))]
    yield from map(_stats, chosen)
    room = limit - len(chosen)
    for directory in chosen[: min(room, _LISTINGS)]:
        below = spread(_directories(directory), room)
        room -= len(below)
        yield from map(_stats, below)
        yield from (_stats(f"{path}/site-packages") for path in below if "/lib/python" in path)


def _entries(place: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(place) as listing:
            return sorted(listing, key=lambda entry: entry.name)
    except OSError:
        return []


def _directories(place: str) -> list[str]:
    return [
        entry.path
        for entry in _entries(place)
        if entry.name not in RESTLESS and entry.is_dir(follow_symlinks=False)
    ]


def spread(items: Sequence[str], limit: int) -> Sequence[str]:
    """All items, or every n-th so that at most `limit` remain."""
    return items[:: -(-len(items) // limit) or 1] if limit > 0 else ()


def _stats(place: str) -> tuple[int, ...] | None:
    try:
        status = os.lstat(place)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def digest_stats(label: str, places: Iterable[str]) -> str:
    """One digest of the stats of all these paths and of the label."""
    return _digest([label, *map(_stats, places)])


def _digest(stats: Iterable[object]) -> str:
    return blake2b(repr(list(stats)).encode(), digest_size=16).hexdigest()
