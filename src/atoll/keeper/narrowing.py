"""A workspace of which only parts can be written, for one run: by mounts, so it is a wall."""

from __future__ import annotations

import fnmatch
import os

from atoll.keeper import calls

_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST = 500
_OWN = ".git"
"""Stays writable: else nothing could be committed."""


class NothingThere(Exception):  # noqa: N818 - said to people as it is
    """A pattern that names nothing, or too much."""


def narrow(room: str, workspace: str, patterns: list[str]) -> None:
    """Make all of `workspace`, a path in `room`, read-only in a mount namespace of our own.

    But not what `patterns` name. A part of one may have `*`, `?` and `[…]`; `**` at its end is the
    same as none. What does not exist yet cannot be named, only a directory that will hold it. No
    link is followed.
    """
    calls.unshare(calls.CLONE_NEWNS)
    root = _find(room, workspace)
    chosen = [name for name in (_OWN,) if _is_directory(root, name)]
    for pattern in patterns:
        found = sorted(_matches(root, pattern))
        if not found:
            raise NothingThere(f"`{pattern}` names nothing in the workspace")
        chosen += found
    if len(chosen) > _MOST:
        raise NothingThere(f"{len(chosen)} places are too many to be writable: name directories")
    trees = []
    for path in chosen:
        place = calls.open_beneath(root, path, os.O_PATH)
        trees.append((calls.clone_mounts(place), place))
    # After the copies, which would be read-only, too.
    calls.change_mounts(root, calls.MOUNT_READ_ONLY)
    for tree, place in trees:
        calls.attach_mounts(tree, place)


def _find(room: str, workspace: str) -> int:
    """Its parents may be the capsule's own, and links by now: those lead elsewhere out here."""
    place = os.open(room, _PLACE)
    try:
        return calls.open_beneath(place, workspace.lstrip("/"), _PLACE)
    finally:
        os.close(place)


def _is_directory(root: int, name: str) -> bool:
    try:
        os.close(os.open(name, _PLACE, dir_fd=root))
    except OSError:
        return False
    return True


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
            if fnmatch.fnmatchcase(name, part)
        }
    return found


def _listed(root: int, place: str) -> list[str]:
    """What is in there; nothing, if it is no directory or behind a link."""
    try:
        handle = calls.open_beneath(root, place or ".", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return []
    try:
        return os.listdir(handle)
    finally:
        os.close(handle)
