"""Whether a directory that a process serves is still the one that it began with."""

from __future__ import annotations

import errno
import os

_GONE = frozenset({errno.ENOENT, errno.ENOTDIR})


class Place:
    """A directory as it is now: it is lost once its name leads nowhere, or to another one."""

    __slots__ = ("_identity", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity = self._find()

    def is_lost(self) -> bool:
        """False also when it cannot be looked at, which says nothing about it."""
        try:
            return self._find() != self._identity
        except OSError:
            return False

    def _find(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise
        return found.st_dev, found.st_ino
