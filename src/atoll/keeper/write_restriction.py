"""A workspace of which only parts can be written, for one run: by mounts, so it is a wall."""

from __future__ import annotations

import fnmatch
import os
import stat

from atoll.keeper import calls
from atoll.keeper.handles import Opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST = 500
_MOST_ENTRIES = 500_000
REPOSITORY = ".git"


class NothingThere(Exception):  # noqa: N818 - said to people as it is
    """A pattern that names nothing, or too much."""


def narrow(sandbox_root: str, workspace: str, patterns: Sequence[str]) -> None:
    """Make all of `workspace`, a path in `sandbox_root`, read-only in a mount namespace of our own.

    But not what `patterns` name. A part of one may have `*`, `?` and `[…]`; `**` at its end is the
    same as none. What does not exist yet cannot be named, only a directory that will contain it. No
    link is followed. Repositories stay read-only, also below what is named, unless a pattern names
    them: their hooks, filters and objects reach further than any pattern.
    """
    calls.unshare(calls.CLONE_NEWNS)
    root = _find(sandbox_root, workspace)
    _require_repository(root)
    writable, repositories = _choose(root, patterns)
    trees = []
    for path in writable:
        place = calls.open_beneath(root, path, os.O_PATH)
        trees.append((calls.clone_mounts(place), path))
        os.close(place)
    # After the copies, which would be read-only, too.
    calls.change_mounts(root, calls.MOUNT_READ_ONLY)
    for tree, path in trees:
        _attach(root, path, tree)
    for path in repositories:
        place = calls.open_beneath(root, path, os.O_PATH)
        tree = calls.clone_mounts(place)
        os.close(place)
        calls.change_mounts(tree, calls.MOUNT_READ_ONLY)
        _attach(root, path, tree)


def _choose(root: int, patterns: Sequence[str]) -> tuple[list[str], list[str]]:
    """What can be written, and the repositories in it that cannot; outer ones come first."""
    chosen: set[str] = set()
    for pattern in patterns:
        found = _matches(root, pattern)
        if not found:
            raise NothingThere(f"`{pattern}` matches nothing in the workspace")
        chosen |= found
    pinned: set[str] = set()
    repositories: set[str] = set()
    for path in chosen:
        if REPOSITORY not in path.split("/"):
            below = [place for place in _repositories_below(root, path) if place not in chosen]
            repositories.update(below)
            pinned.update(place for repository in below for place in _between(path, repository))
    count = len(chosen | pinned | repositories)
    if count > _MOST:
        raise NothingThere(f"{count} places are too many to be writable: name directories")
    # What something is mounted on cannot be renamed: else a repository could be moved away with
    # the directory that holds it, and another one put in its place.
    return sorted(chosen | pinned, key=_depth), sorted(repositories, key=_depth)


def _depth(path: str) -> int:
    return path.count("/")


def _attach(root: int, path: str, tree: int) -> None:
    """Opened again: what was attached before may contain it by now."""
    place = calls.open_beneath(root, path, os.O_PATH)
    try:
        calls.attach_mounts(tree, place)
    finally:
        os.close(place)
        os.close(tree)


def _require_repository(root: int) -> None:
    """Read-only at its own path; elsewhere, through a link or a file that names it, it would not
    be.
    """
    try:
        found = os.lstat(REPOSITORY, dir_fd=root).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found):
        raise NothingThere(f"`{REPOSITORY}` is not a directory")


def _between(top: str, path: str) -> list[str]:
    """The directories below `top` that hold `path`."""
    found = []
    while (path := path.rpartition("/")[0]) != top:
        found.append(path)
    return found


def _repositories_below(root: int, top: str) -> list[str]:
    found: list[str] = []
    pending = [top]
    looked_at = 0
    while pending:
        place = pending.pop()
        for name, is_directory in _entries(root, place):
            looked_at += 1
            if looked_at > _MOST_ENTRIES:
                raise NothingThere(f"`{top}` holds too many files: name smaller directories")
            if name == REPOSITORY:
                found.append(f"{place}/{name}")
            elif is_directory:
                pending.append(f"{place}/{name}")
    return found


def _find(sandbox_root: str, workspace: str) -> int:
    """The capsule may have replaced its parents with links, which point elsewhere outside."""
    with Opened(os.open(sandbox_root, _PLACE)) as place:
        return calls.open_beneath(place, workspace.lstrip("/"), _PLACE)


def _matches(root: int, pattern: str) -> set[str]:
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if parts and parts[-1] == "**":
        parts.pop()
    if not parts or ".." in parts:
        raise NothingThere(f"`{pattern}` is not a path in the workspace")
    found = {""}
    for part in parts:
        found = {
            f"{place}/{name}" if place else name
            for place in found
            for name in _listed(root, place)
            if fnmatch.fnmatchcase(name, part) and (name != REPOSITORY or part == REPOSITORY)
        }
    return found


def _listed(root: int, place: str) -> list[str]:
    return [name for name, _ in _entries(root, place)]


def _entries(root: int, place: str) -> list[tuple[str, bool]]:
    """What is in there, and whether it is a directory; nothing, if it is none or behind a link."""
    try:
        handle = calls.open_beneath(root, place or ".", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return []
    try:
        with os.scandir(handle) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    finally:
        os.close(handle)
