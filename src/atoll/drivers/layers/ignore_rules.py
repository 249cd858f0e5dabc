"""Ignore rules: a cheap fingerprint of those in force, and rules that Atoll adds.

The fingerprint covers `.gitignore` files at every depth, `info/exclude`, `core.excludesFile`, git's
settings, and the directories that hold tracked files: a new entry there, such as a `.gitignore` or
`node_modules`, changes the directory's mtime. Comparing it takes stats only, no git. It includes
the version of the rules that detect dependency directories.

A dependency directory that no rule ignores gets a layer with a `.gitignore` for everything beside
it and itself, as virtual environments have, so that `git add --all` in the capsule skips it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Sequence

from atoll.drivers.layers import dependency_detection
from atoll.drivers.layers.carry_selection import above
from atoll.drivers.layers.dependency_detection import SOURCES, WRITTEN, is_dependency_name
from atoll.drivers.layers.fingerprint import digest_stats, spread
from atoll.drivers.layers.pool import WORKSPACE, Layer, Pool
from atoll.host import git
from atoll.model.layers import LayerKind

_RULES = ".gitignore"
_MOST_DIRECTORIES = 4_096
"""Larger projects are sampled."""
_MOST_RULES = 4_096


def find_watched(checkout: str, carried: Iterable[str]) -> tuple[str, ...]:
    """The paths to include in the fingerprint, absolute or from the checkout's root. `carried` are
    the entries that capsules get besides the commit.
    """
    tracked = git.tracked(cwd=checkout)
    directories = {parent for path in tracked for parent in above(path)}
    rules = {path for path in tracked if path == _RULES or path.endswith(f"/{_RULES}")}
    # A carried entry may be in a directory whose only tracked file is a `.gitignore`.
    rules |= {f"{parent}/{_RULES}" for path in carried for parent in above(path)}
    return (
        *spread(sorted(directories), _MOST_DIRECTORIES),
        *spread(sorted({_RULES, *rules}), _MOST_RULES),
        *_setting_files(checkout),
    )


def stamp_rules(checkout: str, watched: Sequence[str], commit: str) -> str:
    """Equal fingerprints mean that the same entries are ignored and the same are tracked."""
    seed = f"{commit} {dependency_detection.VERSION}"
    return digest_stats(seed, (os.path.join(checkout, path) for path in watched))


def stamp_settings(checkout: str, watched: Sequence[str]) -> str:
    """The same for rules and git settings only, without the commit and the directories."""
    chosen = (path for path in watched if os.path.isabs(path) or _is_rules(path))
    return digest_stats(
        str(dependency_detection.VERSION), (os.path.join(checkout, path) for path in chosen)
    )


def _is_rules(path: str) -> bool:
    return os.path.basename(path) == _RULES or path.startswith(f".git{os.sep}")


def _setting_files(checkout: str) -> list[str]:
    """Git's settings and excludes outside the tree, whether these files exist or not."""
    listed = git.git("config", "--list", "--show-origin", "-z", cwd=checkout).text.split("\0")
    origins = {text.removeprefix("file:") for text in listed[0::2] if text.startswith("file:")}
    settings = (entry.partition("\n") for entry in listed[1::2])
    excludes = {value for key, _, value in settings if key == "core.excludesfile"}
    home = os.path.expanduser("~")
    config = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    exclude = git.git("rev-parse", "--git-path", "info/exclude", cwd=checkout).text
    return sorted(
        {
            *origins, *map(os.path.expanduser, excludes), exclude.removesuffix("\n"),
            f"{home}/.gitconfig", f"{config}/git/config", f"{config}/git/ignore",
        }
    )  # fmt: skip


_HEAD = b"# Made by Atoll: the project does not ignore this directory.\n"
_PATTERNS = ("*", *(f"!/*.{suffix}" for suffix in SOURCES), *(f"/{name}" for name in WRITTEN))
_ALL = _HEAD + "".join(f"{pattern}\n" for pattern in _PATTERNS).encode()


def is_void(content: bytes, directory: str) -> bool:
    """Whether a `.gitignore` was added by an earlier version of Atoll to a directory that may
    contain sources, and must be disregarded.
    """
    return content.startswith(_HEAD) and not is_dependency_name(os.path.basename(directory))


def freeze_own_rules(pool: Pool, checkout: str, directories: Sequence[str]) -> str | None:
    """Returns the id of the layer; None when no directory needs rules."""
    modes = {path: _mode(f"{checkout}/{path}") for path in directories if _needs(checkout, path)}
    if not modes:
        return None
    digest = hashlib.blake2b(repr(sorted(modes.items())).encode() + _ALL, digest_size=8)
    name = LayerKind.RULES.layer(digest.hexdigest())
    if (found := pool.find(name)) is not None:
        return found.id
    with pool.building() as place:
        root = place / "tree" / WORKSPACE
        for path in modes:
            (root / path).mkdir(parents=True)
            (root / path / _RULES).write_bytes(_ALL)
        for inner in (*_with_parents(modes), "."):
            # A directory takes its attributes from its topmost layer.
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
