"""The paths that differ between two commits, and the states in which a landing can find them."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from atoll.host import git

GITLINK = "160000"
_ABSENT_MODE = "000000"


class TreeSide(NamedTuple):
    """A file, link or submodule of a commit."""

    mode: str
    object_id: str


class PathChange(NamedTuple):
    path: str
    """Relative to the root of the checkout, as `os.fsdecode` reads it."""
    old: TreeSide | None
    new: TreeSide | None

    @property
    def is_gitlink(self) -> bool:
        return any(one is not None and one.mode == GITLINK for one in (self.old, self.new))

    def reversed(self) -> PathChange:
        return PathChange(self.path, self.new, self.old)


class FileState(StrEnum):
    """How the file of a changed path compares with the two commits."""

    OLD = "as before"
    NEW = "as landed"
    EITHER = "as before and as landed"
    """A submodule, whose files a landing does not touch."""
    CUT = "missing or cut off"
    """What a git that was killed leaves: no file, or the beginning of one of the two."""
    OTHER = "changed"


def find_changes(old: str, new: str, *, repository: str) -> list[PathChange]:
    """What differs between two commits or trees, in the order of git."""
    answer = git.git(
        "diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--no-ext-diff",
        "--ignore-submodules=none", old, new,
        cwd=repository,
    )  # fmt: skip
    words = answer.text.split("\0")
    found = []
    for head, path in zip(words[0::2], words[1::2], strict=False):
        old_mode, new_mode, old_id, new_id, _ = head.removeprefix(":").split(" ")
        found.append(PathChange(path, _entry(old_mode, old_id), _entry(new_mode, new_id)))
    return found


def _entry(mode: str, object_id: str) -> TreeSide | None:
    return None if mode == _ABSENT_MODE else TreeSide(mode, object_id)


def find_obstructions(root: str, changes: Sequence[PathChange]) -> list[str]:
    """What git does not track, ignored files included, and what stands where a file would be
    written: paths that a landing would overwrite or remove. Case-insensitive filesystems included:
    there, a new path whose spelling differs from a file's is in its way.
    """
    vanishing = {change.path for change in changes if change.old is not None}
    added = [change for change in changes if change.old is None and change.new is not None]
    found = [place for change in added for place in _in_the_way(root, change, vanishing=vanishing)]
    return list(dict.fromkeys(found))


def _in_the_way(root: str, change: PathChange, *, vanishing: Collection[str]) -> Iterable[str]:
    parts = change.path.split("/")
    for depth in range(1, len(parts)):
        above = "/".join(parts[:depth])
        mode = _mode(root, above)
        if mode is None:
            return
        if not stat.S_ISDIR(mode):
            # A file or link that the landing replaces by a directory was found to be unchanged.
            if above not in vanishing:
                yield above
            return
    mode = _mode(root, change.path)
    if mode is None:
        return
    if stat.S_ISDIR(mode):
        is_empty = not os.listdir(os.path.join(root, change.path))
        if change.is_gitlink and is_empty:
            return
        yield from _unknown_below(root, change.path, vanishing)
    else:
        yield change.path


def _unknown_below(root: str, path: str, vanishing: Collection[str]) -> Iterable[str]:
    """The files below a directory that the landing would not remove by itself."""
    for place, directories, names in os.walk(os.path.join(root, path)):
        below = os.path.relpath(place, root)
        links = [name for name in directories if os.path.islink(os.path.join(place, name))]
        for name in (*names, *links):
            if f"{below}/{name}" not in vanishing:
                yield f"{below}/{name}"
        if not names and not directories:
            # Git does not track it, and may not be able to remove what it does not know.
            yield below


def _mode(root: str, path: str) -> int | None:
    try:
        return os.lstat(os.path.join(root, path)).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_absent(root: str, path: str) -> bool:
    """Whether there is no file at a path; a directory may stand there."""
    mode = _mode(root, path)
    return mode is None or stat.S_ISDIR(mode)


def is_missing(root: str, path: str) -> bool:
    return _mode(root, path) is None


def find_case_conflicts(new: str, changes: Sequence[PathChange], *, repository: str) -> list[str]:
    """New paths that a case-insensitive filesystem takes for others of the same commit."""
    listed = git.git("ls-tree", "-r", "-z", "--name-only", "--full-tree", new, cwd=repository)
    spelled: dict[str, set[str]] = {}
    for path in filter(None, listed.text.split("\0")):
        spelled.setdefault(path.casefold(), set()).add(path)
    return [
        change.path
        for change in changes
        if change.new is not None and len(spelled.get(change.path.casefold(), ())) > 1
    ]
