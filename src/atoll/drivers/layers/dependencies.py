"""Recognises dependency and build directories by what their tools write into them.

A name alone is no evidence: `vendor` or `build` may be a directory of the owner's own files. A
directory counts only when it holds the file that its package manager or build tool leaves there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_DEPTH = 4
"""How far below an untracked directory dependency directories are looked for."""
_MOST_DIRECTORIES = 4_000
_MOST_NAMES = 200
"""How many entries of a directory are looked at for a pattern of markers."""


class _Marker(NamedTuple):
    path: str
    """Below the directory; `*` stands for any one name."""
    name: str = ""
    """An expression for the directory's own name, where the path alone would fit others."""


_MARKERS = (
    # Python
    _Marker("pyvenv.cfg"),
    _Marker("conda-meta/history"),
    _Marker("PKG-INFO", r".+\.egg-info"),
    _Marker("*/lib", "__pypackages__"),
    # JavaScript
    _Marker(".package-lock.json", "node_modules"),
    _Marker(".modules.yaml", "node_modules"),
    _Marker(".yarn-state.yml", "node_modules"),
    _Marker(".yarn-integrity", "node_modules"),
    _Marker("*/package.json", "node_modules"),
    _Marker("*/*/package.json", "node_modules"),
    _Marker("*/node_modules", "node_modules"),
    # Rust, Go, PHP, Ruby
    _Marker(".rustc_info.json"),
    _Marker("*/.cargo-checksum.json"),
    _Marker("modules.txt", "vendor"),
    _Marker("composer/installed.json"),
    _Marker("ruby/*/gems", "bundle"),
    _Marker("bundle/ruby/*/gems", "vendor"),
    # Elixir, Haskell, Swift, Dart, .NET, Java
    _Marker("*/mix.exs", "deps"),
    _Marker("*/rebar.config", "deps"),
    _Marker("*/lib/*/ebin", "_build"),
    _Marker("cache/plan.json", "dist-newstyle"),
    _Marker("workspace-state.json", r"\.build"),
    _Marker("package_config.json", r"\.dart_tool"),
    _Marker("Manifest.lock", "Pods"),
    _Marker("project.assets.json", "obj"),
    _Marker("buildOutputCleanup", r"\.gradle"),
    _Marker("maven-status", "target"),
    # C and C++, and every cache that says that it is one
    _Marker("CMakeCache.txt"),
    _Marker("meson-private/coredata.dat"),
    _Marker("CACHEDIR.TAG"),
)


def find_dependency_directories(checkout: str, untracked: Iterable[str]) -> list[str]:
    """The dependency directories at or below `untracked` directories, as paths from `checkout`.

    Does not follow symbolic links, does not look into repositories, and looks at a bounded number
    of directories.
    """
    found: list[str] = []
    pending = [(path, 0) for path in untracked]
    looked_at = 0
    while pending and looked_at < _MOST_DIRECTORIES:
        path, depth = pending.pop(0)
        looked_at += 1
        place = f"{checkout}/{path}"
        if os.path.islink(place) or os.path.lexists(f"{place}/.git"):
            continue
        if is_dependency_directory(place):
            found.append(path)
        elif depth < _DEPTH:
            pending += ((f"{path}/{name}", depth + 1) for name in _directories(place))
    return sorted(found)


def is_dependency_directory(place: str) -> bool:
    name = os.path.basename(place)
    return any(
        (not marker.name or re.fullmatch(marker.name, name)) and _holds(place, marker.path)
        for marker in _MARKERS
    )


def _holds(place: str, pattern: str) -> bool:
    head, star, rest = pattern.partition("*")
    if not star:
        return os.path.lexists(f"{place}/{pattern}")
    parent = f"{place}/{head}".rstrip("/")
    names = _directories(parent)[:_MOST_NAMES]
    return any(_holds(f"{parent}/{name}", rest.lstrip("/")) for name in names)


def _directories(place: str) -> list[str]:
    return sorted(_directory_names(place))


def _directory_names(place: str) -> Iterator[str]:
    try:
        with os.scandir(place) as listing:
            for entry in listing:
                if entry.name != ".git" and entry.is_dir(follow_symlinks=False):
                    yield entry.name
    except OSError:
        return
