"""A cheap stamp of everything that decides which entries of a checkout git ignores.

Covers `.gitignore` files at every depth, `info/exclude`, `core.excludesFile`, git's settings, and
the directories that hold tracked files: an entry that appears there, such as a new `.gitignore` or
`node_modules`, changes the directory's time. Comparing needs stats only, no git. The version of the
rules for dependency directories is part of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from atoll.drivers.layers import dependencies
from atoll.drivers.layers.carrylist import above
from atoll.drivers.layers.fingerprint import digest_stats, spread
from atoll.host import git

_RULES = ".gitignore"
_MOST_DIRECTORIES = 4_096
"""A larger project is sampled."""
_MOST_RULES = 4_096


def find_watched(checkout: str, carried: Iterable[str]) -> tuple[str, ...]:
    """The paths to stamp, absolute or from the checkout's root. `carried` are the entries that
    travel besides the commit.
    """
    tracked = git.tracked(cwd=checkout)
    directories = {parent for path in tracked for parent in above(path)}
    rules = {path for path in tracked if path == _RULES or path.endswith(f"/{_RULES}")}
    # A carried entry may lie in a directory that holds nothing tracked but its own rules.
    rules |= {f"{parent}/{_RULES}" for path in carried for parent in above(path)}
    return (
        *spread(sorted(directories), _MOST_DIRECTORIES),
        *spread(sorted({_RULES, *rules}), _MOST_RULES),
        *_setting_files(checkout),
    )


def stamp_rules(checkout: str, watched: Sequence[str], commit: str) -> str:
    """Equal stamps mean that the same entries are ignored, and that the same are tracked."""
    seed = f"{commit} {dependencies.VERSION}"
    return digest_stats(seed, (os.path.join(checkout, path) for path in watched))


def stamp_settings(checkout: str, watched: Sequence[str]) -> str:
    """The same without the commit and the directories: of the rules and git's settings only."""
    chosen = (path for path in watched if os.path.isabs(path) or _is_rules(path))
    return digest_stats(
        str(dependencies.VERSION), (os.path.join(checkout, path) for path in chosen)
    )


def _is_rules(path: str) -> bool:
    return os.path.basename(path) == _RULES or path.startswith(f".git{os.sep}")


def _setting_files(checkout: str) -> list[str]:
    """Git's settings and excludes outside of the tree, also where there is no such file yet."""
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
