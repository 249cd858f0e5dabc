"""A reader of a plain directory, as simple as can be, for tests of what is built on readers."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from atoll.model.errors import StateError
from atoll.model.untrusted import InsidePath

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.host.beneath import EntryKind

MOST_ENTRIES = 1_000_000


class DirectoryReader:
    """Fulfils `TreeReader`. Tests do not race with it, so it may look at paths."""

    def __init__(self, root: Path) -> None:
        self._root = os.fsencode(root)
        self.opened: list[InsidePath] = []

    def _full(self, path: InsidePath | None) -> bytes | None:
        if path is None:
            return self._root
        for place in path.parents():
            if os.path.islink(os.path.join(self._root, place.raw)):
                return None
        return os.path.join(self._root, path.raw)

    def kind(self, path: InsidePath) -> EntryKind | None:
        full = self._full(path)
        try:
            mode = os.lstat(full).st_mode if full is not None else 0
        except OSError:
            return None
        if stat.S_ISREG(mode):
            return "file"
        if stat.S_ISDIR(mode):
            return "directory"
        return "link" if stat.S_ISLNK(mode) else "special" if mode else None

    def names(self, directory: InsidePath | None) -> list[InsidePath]:
        full = self._full(directory)
        if full is None or not os.path.isdir(full) or os.path.islink(full):
            return []
        found = sorted(os.listdir(full))
        if len(found) > MOST_ENTRIES:
            raise StateError("too many entries")
        return [InsidePath(name) if directory is None else directory.child(name) for name in found]

    def find_file(self, path: InsidePath) -> int | None:
        full = self._full(path)
        if full is None or self.kind(path) != "file":
            return None
        try:
            handle = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        self.opened.append(path)
        return handle

    def read(self, path: InsidePath, *, limit_bytes: int) -> bytes | None:
        handle = self.find_file(path)
        if handle is None:
            return None
        with open(handle, "rb") as stream:
            content = stream.read(limit_bytes + 1)
        return content if len(content) <= limit_bytes else None
