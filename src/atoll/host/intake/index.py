"""Parses git's index (versions 2, 3 and 4) without git.

The agent writes the index: every number in it may be false. Malformed content results in None,
never in an exception, and all paths together are not much larger than the content.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, find_object_id, find_path

_HEADER = struct.Struct(">4sII")
_EXTENSION = struct.Struct(">4sI")
_MODE_OFFSET = 24
_STAT_BYTES = 40
"""Times, device, inode, mode, owner and size come before the object id."""
_EXTENDED = 0x4000
_STAGE_SHIFT = 12
_SKIP_WORKTREE = 0x4000
_INTENT_TO_ADD = 0x2000
_MODES = {0o100644, 0o100755, 0o120000, 0o160000}
_REFUSED_EXTENSIONS = {b"link", b"sdir"}
"""A split index refers to another file, a sparse one contains directories."""
_PATH_BYTES = 4096
_MOST_UNFOLDED = 8
_LEAST_UNFOLDED_BYTES = 16 << 20
"""Version 4 stores only the difference to the previous path; all paths together may be this many
times as large as the content, or this large."""


class IndexEntry(NamedTuple):
    """One entry of an index."""

    path: InsidePath
    mode: int
    object_id: ObjectId
    stage: int
    """0, or 1 to 3 for the sides of a conflict."""
    skip_worktree: bool
    intent_to_add: bool


class _MalformedError(Exception):
    pass


class _Cursor:
    """Reads forward within bounds."""

    def __init__(self, content: bytes, at: int, end: int) -> None:
        self._content, self.at, self._end = content, at, end

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > self._end:
            raise _MalformedError
        piece = self._content[self.at : self.at + size]
        self.at += size
        return piece

    def take_number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def take_text(self) -> bytes:
        """Reads up to a NUL and skips it."""
        found = self._content.find(b"\0", self.at, min(self._end, self.at + _PATH_BYTES + 1))
        if found < 0:
            raise _MalformedError
        piece = self._content[self.at : found]
        self.at = found + 1
        return piece

    def take_offset(self) -> int:
        """Reads a number in git's variable-length encoding of offsets."""
        byte = self.take_number(1)
        value = byte & 0x7F
        while byte & 0x80:
            byte = self.take_number(1)
            value = ((value + 1) << 7) | (byte & 0x7F)
            if value > _PATH_BYTES:
                raise _MalformedError
        return value

    @property
    def left(self) -> int:
        return self._end - self.at


def parse_index(content: bytes, *, id_bytes: int) -> list[IndexEntry] | None:
    """The entries of an index whose object ids have `id_bytes` (20 or 32).

    None for malformed content, for a split index and for one with sparse directories. The checksum
    may be absent (zero), as with `index.skipHash`.
    """
    try:
        return list(_entries(content, id_bytes))
    except _MalformedError:
        return None


def _entries(content: bytes, id_bytes: int) -> Iterator[IndexEntry]:
    end = len(content) - id_bytes
    if end < _HEADER.size or not _has_checksum(content, end, id_bytes):
        raise _MalformedError
    magic, version, count = _HEADER.unpack_from(content)
    if magic != b"DIRC" or version not in (2, 3, 4) or count * _least(id_bytes, version) > end:
        raise _MalformedError
    cursor = _Cursor(content, _HEADER.size, end)
    last, last_key = b"", (b"", -1)
    left = max(_LEAST_UNFOLDED_BYTES, _MOST_UNFOLDED * len(content))
    for _ in range(count):
        entry = _entry(cursor, version, id_bytes, last)
        last = entry.path.raw
        # Git writes sorted unique entries; an ambiguous index is rejected.
        left -= len(last)
        if (last, entry.stage) <= last_key or left < 0:
            raise _MalformedError
        last_key = (last, entry.stage)
        yield entry
    while cursor.left:
        name, size = _EXTENSION.unpack(cursor.take(_EXTENSION.size))
        if name in _REFUSED_EXTENSIONS or not b"A" <= name[:1] <= b"Z":
            # Extensions with a capital first letter are optional; a reader that does not know one
            # of the others must not use the index.
            raise _MalformedError
        cursor.take(size)


def _least(id_bytes: int, version: int) -> int:
    """The minimum size of an entry."""
    smallest = _STAT_BYTES + id_bytes + 2
    return smallest + 2 if version == 4 else smallest + 1


def _has_checksum(content: bytes, end: int, id_bytes: int) -> bool:
    found = content[end:]
    if found == bytes(id_bytes):
        return True
    algorithm = "sha1" if id_bytes == 20 else "sha256"
    return hashlib.new(algorithm, content[:end], usedforsecurity=False).digest() == found


def _entry(cursor: _Cursor, version: int, id_bytes: int, last: bytes) -> IndexEntry:
    start = cursor.at
    mode = int.from_bytes(cursor.take(_STAT_BYTES)[_MODE_OFFSET : _MODE_OFFSET + 4], "big")
    object_id = find_object_id(Untrusted(cursor.take(id_bytes).hex().encode()))
    flags = cursor.take_number(2)
    more = 0
    if flags & _EXTENDED:
        if version == 2:
            raise _MalformedError
        more = cursor.take_number(2)
    if version == 4:
        cut = cursor.take_offset()
        if cut > len(last):
            raise _MalformedError
        raw = last[: len(last) - cut] + cursor.take_text()
    else:
        raw = cursor.take_text()
        # Padded with NULs to a multiple of eight; the one that ends the path counts.
        if any(cursor.take(-(cursor.at - start) % 8)):
            raise _MalformedError
    path = find_path(Untrusted(raw))
    if path is None or object_id is None or mode not in _MODES:
        raise _MalformedError
    return IndexEntry(
        path=path,
        mode=mode,
        object_id=object_id,
        stage=(flags >> _STAGE_SHIFT) & 3,
        skip_worktree=bool(more & _SKIP_WORKTREE),
        intent_to_add=bool(more & _INTENT_TO_ADD),
    )
