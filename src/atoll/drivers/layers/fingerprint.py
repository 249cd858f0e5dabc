"""A cheap stamp of what is carried: whether it is worth looking at again, from stats alone.

No git, no content. Equal stamps mean that no tool which installs or builds has been at work since.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

ROOT, REST = "", "/"
"""The keys of a fingerprint that are no directory's."""

_SAMPLE = 240
"""How many directories are looked at for one stamp."""
_LISTINGS = 40
_MARKERS = (
    ".package-lock.json", ".modules.yaml", ".yarn-state.yml", ".yarn-integrity", "pyvenv.cfg",
    ".rustc_info.json", "CMakeCache.txt", ".ninja_log", "build.ninja", "composer/installed.json",
)  # fmt: skip
"""Files that installers and build tools write last."""
_LOCKS = (
    r"package-lock\.json|npm-shrinkwrap\.json|yarn\.lock|pnpm-lock\.yaml|bun\.lockb?|deno\.lock"
    r"|(?:uv|pdm|poetry|Pipfile|Cargo|Gemfile|composer|mix|pubspec|flake|pixi)\.lock"
    r"|requirements.*\.txt|go\.sum|gradle\.lockfile|packages\.lock\.json|\.gitignore"
)
RESTLESS = frozenset({".cache", ".vite", ".vite-temp", "__pycache__"})
"""Caches that change with every build, and that no capsule needs in their latest state."""


def fingerprint(checkout: str, directories: Sequence[str], rest: Sequence[str]) -> dict[str, str]:
    """A stamp for each directory, for `REST` and for the `ROOT`, from a few hundred stats each.

    An added, removed or replaced package changes one; a file edited in place, or an ignored entry
    that appears below a directory with none before, may not. For those there is `find_carried`.
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
    """Of a directory, its markers and as many directories below it, two levels deep."""
    yield _stats(place)
    if limit < len(_MARKERS):
        return
    yield from (_stats(f"{place}/{marker}") for marker in _MARKERS)
    many: list[str] = []
    others: list[str] = []
    for path in _directories(place):
        # Scopes and a package manager's own directories stand for many packages.
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
    """All of them, or every n-th so that at most `limit` are left."""
    return items[:: -(-len(items) // limit) or 1] if limit > 0 else ()


def _stats(place: str) -> tuple[int, ...] | None:
    try:
        status = os.lstat(place)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def digest_stats(label: str, places: Iterable[str]) -> str:
    """One stamp of all of these files and directories, and of the label."""
    return _digest([label, *map(_stats, places)])


def _digest(stats: Iterable[object]) -> str:
    return blake2b(repr(list(stats)).encode(), digest_size=16).hexdigest()
