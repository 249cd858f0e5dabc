"""Reads trees that a hostile process can write to, without ever leaving them.

Everything is opened relative to a descriptor with `openat2`, which refuses links, magic links and
paths that lead outside (`RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS`): see
`kernel.open_beneath`. Where that call is missing, or loading libc is too expensive for a single
file, `open_by_parts` does the same with one call per component. Only regular files are opened for
reading, without blocking, and every read is bounded.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Literal, Protocol

from atoll.model.untrusted import InsidePath

EntryKind = Literal["file", "directory", "link", "special"]


class TreeReader(Protocol):
    """A tree as a capsule sees it. Any entry may vanish or change at any time."""

    def kind(self, path: InsidePath) -> EntryKind | None:
        """The type of an entry; None if there is none, or only behind a link."""

    def names(self, directory: InsidePath | None) -> list[InsidePath]:
        """The entries of a directory, sorted; None is the root. Empty if it is no directory or
        cannot be listed. Raises StateError if it has more than a fixed number of entries.
        """

    def find_file(self, path: InsidePath) -> int | None:
        """A descriptor of a regular file for reading; None if there is no readable one."""

    def read(self, path: InsidePath, *, limit_bytes: int) -> bytes | None:
        """The content of a regular file; None if there is none, or it exceeds the limit."""


def open_by_parts(directory: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Opens a path below a directory, one component at a time, without following any link.

    Raises OSError as `kernel.open_beneath`.
    """
    *parents, name = path.split(b"/")
    if b".." in (*parents, name) or path.startswith(b"/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    way = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.dup(directory)
    try:
        for parent in parents:
            below = os.open(parent or b".", way, dir_fd=handle)
            os.close(handle)
            handle = below
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC
        found = os.open(name or b".", flags, mode, dir_fd=handle)
    finally:
        os.close(handle)
    # With O_PATH alone the kernel opens the link itself.
    if flags & os.O_PATH and stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return found
