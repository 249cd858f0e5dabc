"""Reading a tree that somebody hostile can write, without ever leaving it.

Everything is opened relative to a descriptor with `openat2`, which refuses links, magic links and
whatever leads out (`RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS`): see
`kernel.open_beneath`. Where that call is missing, or loading libc is too much for a single file,
`open_by_parts` does the same with one call per component. Only regular files are opened for
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
    """A tree as a capsule shows it. Whatever is asked for may vanish or change meanwhile."""

    def kind(self, path: InsidePath) -> EntryKind | None:
        """What is there; None when there is nothing, or only behind a link."""

    def names(self, directory: InsidePath | None) -> list[InsidePath]:
        """What a directory holds, sorted; None is the top. Empty when it is no directory or
        cannot be listed. Raises StateError when it holds more than a fixed number of entries.
        """

    def find_file(self, path: InsidePath) -> int | None:
        """A descriptor of a regular file for reading; None when there is none that can be read."""

    def read(self, path: InsidePath, *, limit_bytes: int) -> bytes | None:
        """The whole content of a regular file; None when there is none, or it is larger."""


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
