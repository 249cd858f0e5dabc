"""A layer that lets git inside a capsule ignore dependency directories that no rule ignores.

Each gets a `.gitignore` that ignores everything beside it and itself, as virtual environments and
tool caches have one. So a commit of everything in the capsule does not take them along. A source
file that is put directly into such a directory is not ignored: no tool puts one there.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Sequence

from atoll.drivers.layers.carrylist import above
from atoll.drivers.layers.dependencies import SOURCES, WRITTEN, is_dependency_name
from atoll.drivers.layers.pool import WORKSPACE, Layer, Pool

_RULES = ".gitignore"
_HEAD = b"# Made by Atoll: the project does not ignore this directory.\n"
_PATTERNS = ("*", *(f"!/*.{suffix}" for suffix in SOURCES), *(f"/{name}" for name in WRITTEN))
_ALL = _HEAD + "".join(f"{pattern}\n" for pattern in _PATTERNS).encode()


def is_void(content: bytes, directory: str) -> bool:
    """Whether a `.gitignore` is Atoll's and in a directory that may hold sources: earlier versions
    made some there.
    """
    return content.startswith(_HEAD) and not is_dependency_name(os.path.basename(directory))


def freeze_own_rules(pool: Pool, checkout: str, directories: Sequence[str]) -> str | None:
    """The id of the layer; None when no directory needs it."""
    modes = {path: _mode(f"{checkout}/{path}") for path in directories if _needs(checkout, path)}
    if not modes:
        return None
    digest = hashlib.blake2b(repr(sorted(modes.items())).encode() + _ALL, digest_size=8)
    name = f"i{digest.hexdigest()}"
    if (found := pool.find(name)) is not None:
        return found.id
    with pool.building() as place:
        root = place / "tree" / WORKSPACE
        for path in modes:
            (root / path).mkdir(parents=True)
            (root / path / _RULES).write_bytes(_ALL)
        for inner in (*_with_parents(modes), "."):
            # The attributes of a directory are those of its topmost layer.
            (root / inner).chmod(_mode(f"{checkout}/{inner}"))
        about = f"ignore rules for {', '.join(sorted(modes)[:3])}"
        return pool.freeze(place, Layer(id=name, kind="rules", about=about)).id


def _needs(checkout: str, path: str) -> bool:
    return not os.path.lexists(f"{checkout}/{path}/{_RULES}")


def _mode(place: str) -> int:
    try:
        return stat.S_IMODE(os.stat(place, follow_symlinks=False).st_mode) | stat.S_IRWXU
    except OSError:
        return 0o755


def _with_parents(paths: Iterable[str]) -> list[str]:
    return sorted({path for inner in paths for path in above(f"{inner}/")}, reverse=True)
