"""Recognises dependency and build directories by name and by the files that tools create there.

A name alone is not enough: `vendor` or `build` may hold the owner's files. Nor is a tool's file:
`cmake .` and `python -m venv .` put theirs beside the owner's sources. A directory needs both, and
must have no source file directly in it: tools keep sources deeper.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_DEPTH = 4
"""How deep dependency directories are searched below an untracked directory."""
_MOST_DIRECTORIES = 4_000
_MOST_NAMES = 200
"""How many entries of a directory are compared with a marker pattern."""
VERSION = 2
"""Increase it with every change of these rules: directories are then selected again."""
SOURCES = (
    *("c", "cc", "cpp", "cxx", "m", "mm", "cs", "java", "kt", "scala", "swift", "rs", "go", "zig"),
    *("py", "ipynb", "rb", "php", "pl", "lua", "r", "jl", "ex", "exs", "erl", "hs", "ml", "clj"),
    *("js", "jsx", "mjs", "cjs", "ts", "tsx", "vue", "svelte", "html", "css", "sql", "sh"),
    *("md", "rst", "tex"),
)
"""Suffixes of files that people write. Headers are missing: configuring a build creates a
`config.h` at the top."""
WRITTEN = ("autoload.php",)
"""Source-like files that tools create directly in their directory."""


class _Marker(NamedTuple):
    path: str
    """A path below the directory; `*` matches one name."""
    name: str
    """A regular expression for the directory's name."""


_ENVIRONMENT = r".*env([-_.]?\d.*)?|\.?(v|virtual)?env[-_.].+"
_BUILD = (
    r"[._]?build(dir)?([-_.].*)?|.+[-_.]build|cmake-build-.+|out|(?i:(.+[-_.])?(debug|release))"
)
_TARGET = r"target([-_.].+)?"
_CACHE = r"\.?cache|.+[-_.]cache"

_MARKERS = (
    # Python
    _Marker("pyvenv.cfg", _ENVIRONMENT),
    _Marker("*/pyvenv.cfg", r"\.tox|\.nox"),
    _Marker("conda-meta/history", f"{_ENVIRONMENT}|\\.?conda"),
    _Marker("envs/*/conda-meta", r"\.pixi"),
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
    _Marker(".rustc_info.json", _TARGET),
    _Marker("*/.cargo-checksum.json", "vendor"),
    _Marker("modules.txt", "vendor"),
    _Marker("composer/installed.json", "vendor"),
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
    # C and C++, and every cache with a CACHEDIR.TAG
    _Marker("CMakeCache.txt", _BUILD),
    _Marker("meson-private/coredata.dat", _BUILD),
    _Marker("CACHEDIR.TAG", f"{_TARGET}|{_CACHE}"),
)


def find_dependency_directories(checkout: str, untracked: Iterable[str]) -> list[str]:
    """The dependency directories at or below `untracked` directories, as paths from `checkout`.

    Does not follow symbolic links, does not enter repositories, and reads a bounded number of
    directories.
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
        re.fullmatch(marker.name, name) and _holds(place, marker.path) for marker in _MARKERS
    ) and not _holds_sources(place)


def is_dependency_name(name: str) -> bool:
    """Whether a dependency directory may have this name."""
    return any(re.fullmatch(marker.name, name) for marker in _MARKERS)


def _holds_sources(place: str) -> bool:
    """Whether a directory directly contains a source file."""
    try:
        with os.scandir(place) as listing:
            return any(_is_source(entry.name) and not entry.is_dir() for entry in listing)
    except OSError:
        return True


def _is_source(name: str) -> bool:
    return os.path.splitext(name)[1][1:] in SOURCES and name not in WRITTEN


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
