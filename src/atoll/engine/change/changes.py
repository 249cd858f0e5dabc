"""What differs between two commits of the owner's repository: paths, modes, blobs, lines and sizes.

Paths are an agent's: `FileChange.path` is for comparisons and for git, `FileChange.shown` for
people. Nothing is checked out, converted or executed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from atoll.engine.change import objects
from atoll.engine.change.objects import ObjectReader
from atoll.host.intake.transfer import require_ids
from atoll.host.intake.tree_objects import Sides, TooManyFilesError, compared
from atoll.model.untrusted import Untrusted, show

_LISTED_BYTES = 64 << 20
"""The limit for listed paths: more than 100,000 changed files."""
_COUNTING_S = 60.0
GITLINK = 0o160000
"""The mode of a submodule."""


class ChangeKind(StrEnum):
    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    RETYPED = "type-changed"
    """A file has become a link or a submodule, or the other way round."""


class FileChange(NamedTuple):
    """One path at which two commits differ. A rename is a deletion and an addition."""

    path: str
    """As `os.fsdecode` returns it: it may contain anything but a NUL."""
    kind: ChangeKind
    old_mode: int = 0
    """0 if it did not exist."""
    new_mode: int = 0
    old_id: str = ""
    new_id: str = ""
    added: int | None = None
    """Lines; None for a binary file, and where lines were not counted."""
    removed: int | None = None
    old_size: int | None = None
    """In bytes; None for a submodule, and where there is no file."""
    new_size: int | None = None

    @property
    def shown(self) -> str:
        """The path for people and JSON: no control characters, bounded length."""
        return show_path(self.path)

    @property
    def is_deleted(self) -> bool:
        return self.kind is ChangeKind.DELETED

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file now."""
        return stat.S_ISREG(self.new_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.new_mode)

    @property
    def is_submodule(self) -> bool:
        return self.new_mode == GITLINK

    @property
    def is_executable(self) -> bool:
        return self.is_file and bool(self.new_mode & 0o100)


class Changes(NamedTuple):
    """All differences from one commit or tree to another, sorted by path."""

    repository: str
    """The owner's, from which the objects are read."""
    base: str
    tip: str
    files: tuple[FileChange, ...] = ()
    is_complete: bool = True
    """False if there are too many differences to be listed; then `files` is empty."""
    is_counted: bool = True
    """False if lines were not counted: that took too long or too much memory."""

    @property
    def added(self) -> int:
        """Added lines, without those of binary files."""
        return sum(file.added or 0 for file in self.files)

    @property
    def removed(self) -> int:
        return sum(file.removed or 0 for file in self.files)


def show_path(path: str) -> str:
    return show(Untrusted(os.fsencode(path)))


def load_changes(repository: str, base: str, tip: str) -> Changes:
    """The differences from `base` to `tip`, full ids of commits or trees of the repository.

    Raises StateError if one is missing or damaged, DriverError if git fails.
    """
    require_ids(base, tip)
    with objects.open_objects(repository) as reader:
        found = _compare(reader, base, tip)
    if found is None:
        return Changes(repository, base, tip, is_complete=False, is_counted=False)
    files = [_change(raw, sides) for raw, sides in found.items()]
    counts = _count(repository, base, tip) if files else {}
    blobs = objects.sizes(repository, _blobs(files))
    return Changes(
        repository,
        base,
        tip,
        tuple(_measured(file, counts or {}, blobs) for file in files),
        is_counted=counts is not None,
    )


def _compare(reader: ObjectReader, base: str, tip: str) -> dict[bytes, Sides] | None:
    """None if there are too many differences."""
    try:
        return compared(reader.trees, base, tip, limit_bytes=_LISTED_BYTES)
    except TooManyFilesError:
        return None


def _change(raw: bytes, sides: Sides) -> FileChange:
    before, after = sides
    path = os.fsdecode(raw)
    if before is None and after is not None:
        added = ChangeKind.ADDED
        return FileChange(path, added, new_mode=after.mode, new_id=after.object_id)
    if after is None and before is not None:
        deleted = ChangeKind.DELETED
        return FileChange(path, deleted, old_mode=before.mode, old_id=before.object_id)
    if before is None or after is None:
        raise ValueError("a difference has a side")
    same = stat.S_IFMT(before.mode) == stat.S_IFMT(after.mode)
    kind = ChangeKind.MODIFIED if same else ChangeKind.RETYPED
    return FileChange(path, kind, before.mode, after.mode, before.object_id, after.object_id)


def _blobs(files: Iterable[FileChange]) -> list[str]:
    pairs = (
        pair
        for file in files
        for pair in ((file.old_mode, file.old_id), (file.new_mode, file.new_id))
    )
    return [name for mode, name in pairs if name and mode != GITLINK]


def _count(repository: str, base: str, tip: str) -> dict[bytes, tuple[int, int]] | None:
    """The (added, removed) lines of text files by path; None if they cannot be counted."""
    said = bytearray()
    words = objects.program(
        repository, "diff-tree", "-r", "-z", "--numstat", "--no-renames", "--no-ext-diff",
        "--no-textconv", "--no-color", base, tip, "--",
    )  # fmt: skip
    if not objects.answer(words, said.extend, timeout_s=_COUNTING_S).is_good:
        return None
    found = {}
    for entry in bytes(said).split(b"\0"):
        fields = entry.split(b"\t", 2)
        if len(fields) == 3 and fields[0].isdigit() and fields[1].isdigit():
            found[fields[2]] = (int(fields[0]), int(fields[1]))
    return found


def _measured(
    file: FileChange, counts: dict[bytes, tuple[int, int]], blobs: dict[str, int]
) -> FileChange:
    added, removed = counts.get(os.fsencode(file.path), (None, None))
    return file._replace(
        added=added,
        removed=removed,
        old_size=blobs.get(file.old_id),
        new_size=blobs.get(file.new_id),
    )
