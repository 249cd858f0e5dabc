"""Finds the checkout that holds a directory, by the files of a plain repository.

Most repositories are a `.git` directory in the root of their only checkout, which a few stats
show. Everything else (linked worktrees, submodules, bare repositories, settings that move the
checkout, repositories of other users) is for git to judge: then None is returned.
"""

from __future__ import annotations

import os
import re
import stat

_CONFIG_BYTES = 1 << 20
_PLAIN_LINE = re.compile(rb"\s*(\[[^\]]+\]|[a-z][a-z0-9-]*\s*=.*[^\\]|[#;].*)?\s*", re.IGNORECASE)
"""A line of settings that means the same to everyone."""
_MOVED = re.compile(
    rb"worktree|include|^\s*bare\s*(?!\s*=\s*false\s*$)", re.IGNORECASE | re.MULTILINE
)
"""Settings that may say where the checkout is, or that there is none."""
_STEERING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_CEILING_DIRECTORIES",
             "GIT_OBJECT_DIRECTORY", "GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS")  # fmt: skip
"""Variables that may tell git something else than its files do."""


def find_plain_checkout(path: str) -> str | None:
    """The root of the checkout that holds `path`, whose repository is `.git` in it."""
    if any(name in os.environ for name in _STEERING):
        return None
    place = os.path.realpath(path)
    try:
        device = os.stat(place).st_dev
        while not os.path.lexists(os.path.join(place, ".git")):
            above = os.path.dirname(place)
            if above == place or _is_repository(place) or os.stat(above).st_dev != device:
                return None
            place = above
        return place if not _is_repository(place) and _is_plain(place) else None
    except OSError:
        return None


def _is_repository(place: str) -> bool:
    """Whether git could take a directory itself for a repository."""
    return os.path.lexists(os.path.join(place, "HEAD")) and os.path.lexists(
        os.path.join(place, "objects")
    )


def _is_plain(root: str) -> bool:
    repository = os.path.join(root, ".git")
    owned = [os.lstat(place) for place in (repository, root)]
    if not all(stat.S_ISDIR(status.st_mode) for status in owned):
        return False
    # Git works in a repository of another user only if it is told to.
    if any(status.st_uid != os.geteuid() for status in owned):
        return False
    names = set(os.listdir(repository))
    if not {"HEAD", "objects", "refs", "config"} <= names or "commondir" in names:
        return False
    with open(os.path.join(repository, "config"), "rb") as stream:
        content = stream.read(_CONFIG_BYTES + 1)
    with open(os.path.join(repository, "HEAD"), "rb") as stream:
        head = stream.read(_CONFIG_BYTES)
    if re.match(rb"ref: refs/|[0-9a-f]{40}", head) is None or len(content) > _CONFIG_BYTES:
        return False
    lines = content.split(b"\n")
    return _MOVED.search(content) is None and all(map(_PLAIN_LINE.fullmatch, lines))
