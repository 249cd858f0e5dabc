"""Reading a tree that somebody hostile can write, without ever leaving it.

Everything is opened relative to a descriptor with `openat2`, which refuses links, magic links and
whatever leads out (`RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS`). Only regular
files are opened for reading, without blocking, and every read is bounded.
"""

from __future__ import annotations

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
