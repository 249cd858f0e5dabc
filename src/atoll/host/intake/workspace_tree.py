"""Converts files to git's blobs, trees and commits in a temporary store.

Contents come from descriptors that a TreeReader opened and are processed in constant memory. The
agent's attributes, filters and index have no effect.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from io import FileIO
from types import MappingProxyType
from typing import NamedTuple

from atoll.host.beneath import TreeReader
from atoll.host.files import write_all
from atoll.host.intake.blob_filters import (
    CONVERTED_BYTES,
    Conversion,
    apply_rules,
    blob_id,
    convert_staged,
    find_conversions,
    is_attributes,
    is_pointer,
    pointer_to,
    stage,
    tracked,
)
from atoll.host.intake.commits import commit, diff, publish
from atoll.host.intake.ignore import is_git_name
from atoll.host.intake.pack_writer import BrokenObjectError
from atoll.host.intake.store import IntakeRepository, OwnerSettings, load_settings, open_store
from atoll.host.intake.transfer import writing
from atoll.host.intake.tree_objects import TreeEntry, build_tree
from atoll.model.errors import StateError
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, as_content

__all__ = [
    "IntakeRepository",
    "OwnerSettings",
    "TreeEntry",
    "blob_ids",
    "commit",
    "diff",
    "load_settings",
    "open_store",
    "publish",
    "tracked",
    "write_tree",
]  # fmt: skip

_CHUNK_BYTES = 1 << 20
_LINK_MODE = 0o120000
_GITLINK_MODE = 0o160000
_FILE_MODES = (0o100644, 0o100755)
_POINTER_BYTES = 1024
_NO_LINKS: Mapping[InsidePath, Untrusted] = MappingProxyType({})
_NO_GITLINKS: Mapping[InsidePath, ObjectId] = MappingProxyType({})


class _Read(NamedTuple):
    """A file that was read once."""

    size_bytes: int
    blob: ObjectId
    has_crlf: bool
    sha256: str
    """Only if requested."""


def _read_file(
    handle: int,
    store: IntakeRepository,
    take: Callable[[bytes], object],
    *,
    with_sha256: bool = False,
) -> _Read | None:
    """Passes the content to `take`; returns None if the file changes or cannot be read."""
    with open(handle, "rb", buffering=0) as file:
        before = os.fstat(handle)
        digest = hashlib.new(store.settings.algorithm, usedforsecurity=False)
        digest.update(b"blob %d\0" % before.st_size)
        other = hashlib.sha256(usedforsecurity=False)
        size, has_crlf, last = 0, False, b""
        while piece := _piece(file, before.st_size - size):
            size += len(piece)
            digest.update(piece)
            if with_sha256:
                other.update(piece)
            has_crlf = has_crlf or b"\r\n" in piece or (last == b"\r" and piece[:1] == b"\n")
            last = piece[-1:]
            take(piece)
        after = os.fstat(handle)
    if size != before.st_size or (after.st_size, after.st_mtime_ns) != (size, before.st_mtime_ns):
        return None
    return _Read(size, ObjectId(digest.hexdigest()), has_crlf, other.hexdigest())


def _piece(file: FileIO, left: int) -> bytes:
    try:
        return file.read(min(_CHUNK_BYTES, left)) if left > 0 else b""
    except OSError:
        return b""


def blob_ids(
    store: IntakeRepository,
    commit: str,
    reader: TreeReader,
    paths: Collection[InsidePath],
    *,
    links: Mapping[InsidePath, Untrusted] = _NO_LINKS,
    rules: Collection[InsidePath] = (),
) -> dict[InsidePath, ObjectId]:
    """The blobs of files, and of the given link targets, on top of `commit`.

    `rules` are the `.gitattributes` files that may differ from the commit's. A file that cannot be
    read, or that changes while it is read, is left out.
    """
    algorithm = store.settings.algorithm
    found = {path: blob_id(as_content(links[path]), algorithm) for path in paths if path in links}
    regular = [path for path in paths if path not in links]
    conversions = find_conversions(store, commit, regular)
    conversions = apply_rules(store, commit, reader, rules, conversions, regular)
    staged = []
    for path in regular:
        how = conversions.get(path, Conversion.NONE)
        read = _read_path(store, reader, path, how)
        if read is None:
            continue
        found[path] = read.blob
        if how is Conversion.LFS:
            found[path] = _pointer_id(store, reader, path, read)
        elif _is_converted(how, read):
            staged.append(path)
    converter = _Converter(store)
    for path in staged:
        content = reader.read(path, limit_bytes=CONVERTED_BYTES)
        if content is not None:
            converter.add(path, content)
    return found | converter.finish()


def _read_path(
    store: IntakeRepository, reader: TreeReader, path: InsidePath, how: Conversion
) -> _Read | None:
    handle = reader.find_file(path)
    if handle is None:
        return None
    return _read_file(handle, store, len, with_sha256=how is Conversion.LFS)


def _is_converted(how: Conversion, read: _Read) -> bool:
    if read.size_bytes > CONVERTED_BYTES:
        return False
    return how is Conversion.GIT or (how is Conversion.LINE_ENDINGS and read.has_crlf)


def _pointer_id(
    store: IntakeRepository, reader: TreeReader, path: InsidePath, read: _Read
) -> ObjectId:
    content = reader.read(path, limit_bytes=min(read.size_bytes, _POINTER_BYTES))
    if content is not None and is_pointer(content):
        return read.blob
    return blob_id(pointer_to(read.sha256, read.size_bytes), store.settings.algorithm)


def _scratch(store: IntakeRepository) -> str:
    """The name of the store in error messages."""
    return f"the scratch directory `{store.place}`"


class _Converter:
    """Lets git convert copies of files."""

    def __init__(self, store: IntakeRepository) -> None:
        self._store = store
        self._staged: list[InsidePath] = []
        self._found: dict[InsidePath, ObjectId] = {}

    def add(self, path: InsidePath, content: bytes) -> None:
        if is_attributes(path):
            # Git would apply it to others: it is converted alone, after them.
            self._found |= self.finish()
        handle = stage(self._store, path)
        if handle is None:
            return
        with writing(_scratch(self._store)), open(handle, "wb", buffering=0) as file:
            write_all(file, content)
        self._staged.append(path)
        if is_attributes(path):
            self._found |= self.finish()

    def finish(self) -> dict[InsidePath, ObjectId]:
        """The converted blobs; files that git cannot convert are left out."""
        found = convert_staged(self._store, self._staged)
        for path in self._staged:
            (self._store.staging / os.fsdecode(path.raw)).unlink(missing_ok=True)
        self._staged.clear()
        return self._found | found


def write_tree(  # noqa: PLR0913 - what a tree is made of
    store: IntakeRepository,
    base: str,
    reader: TreeReader,
    changed: Mapping[InsidePath, int],
    removed: Collection[InsidePath],
    gitlinks: Mapping[InsidePath, ObjectId] = _NO_GITLINKS,
    *,
    links: Mapping[InsidePath, Untrusted] = _NO_LINKS,
    missed: list[InsidePath] | None = None,
) -> ObjectId:
    """The tree of `base`, a commit or tree, with changes; writes the blobs to the store.

    `changed` has modes (0o100644, 0o100755 or 0o120000), `links` the targets of links. Files that
    vanish or change while they are read stay as in `base` and are added to `missed`. Raises
    StateError if git does not accept a path.
    """
    gone = [] if missed is None else missed
    for path in (*changed, *gitlinks):
        if any(is_git_name(part) for part in path.parts):
            raise StateError(f"`{path.shown()}` cannot be stored: git reserves the name")
    regular = [path for path, mode in changed.items() if mode != _LINK_MODE]
    conversions = find_conversions(store, base, regular)
    rules = [path for path in regular if is_attributes(path)]
    conversions = apply_rules(store, base, reader, rules, conversions, regular)
    # A file that was changed back exists already.
    store.objects.expect(entry.object_id for entry in tracked(store, base, changed).values())
    blobs = _Blobs(store)
    with writing(_scratch(store)):
        for path in sorted(changed):
            if changed[path] == _LINK_MODE:
                blobs.add_link(path, links.get(path), gone)
            elif changed[path] in _FILE_MODES:
                how = conversions.get(path, Conversion.NONE)
                blobs.add_file(path, reader, how, gone)
            else:
                raise ValueError(f"not a mode of a file: {changed[path]:o}")
        entries = {p.raw: TreeEntry(changed[p], made) for p, made in blobs.finish().items()}
        entries |= {p.raw: TreeEntry(_GITLINK_MODE, module) for p, module in gitlinks.items()}
        top = store.objects.tree_of(base)
        return build_tree(store.objects, top, entries, [path.raw for path in removed])


class _Blobs:
    """Writes the contents of files to the store."""

    def __init__(self, store: IntakeRepository) -> None:
        self._store = store
        self._made: dict[InsidePath, ObjectId] = {}
        self._converter = _Converter(store)

    def add_link(
        self, path: InsidePath, target: Untrusted | None, missed: list[InsidePath]
    ) -> None:
        if target is None:
            missed.append(path)
        else:
            self._made[path] = self._store.objects.write_blob(as_content(target))

    def add_file(
        self, path: InsidePath, reader: TreeReader, how: Conversion, missed: list[InsidePath]
    ) -> None:
        handle = reader.find_file(path)
        if handle is None:
            missed.append(path)
        elif how is Conversion.LFS:
            self._add_large(path, handle, missed)
        else:
            self._add_plain(path, handle, how, missed)

    def _add_plain(
        self, path: InsidePath, handle: int, how: Conversion, missed: list[InsidePath]
    ) -> None:
        with open(handle, "rb", buffering=0) as file:
            status = os.fstat(handle)
            content = bytearray()
            is_converted = how is not Conversion.NONE and status.st_size <= CONVERTED_BYTES
            made = self._store.objects.write_stream(
                status.st_size,
                _unchanged(file, status, content if is_converted else None),
            )
            if made is None:
                missed.append(path)
                return
            self._made[path] = made
            has_crlf = how is Conversion.LINE_ENDINGS and b"\r\n" in content
            if is_converted and (how is Conversion.GIT or has_crlf):
                self._converter.add(path, bytes(content))

    def _add_large(self, path: InsidePath, handle: int, missed: list[InsidePath]) -> None:
        """Stores the content for Git LFS and adds a pointer to it."""
        place = self._store.large_files
        place.mkdir(exist_ok=True)
        incoming = place / "incoming"
        with FileIO(incoming, "w+") as file:
            read = _read_file(
                handle, self._store, lambda piece: write_all(file, piece), with_sha256=True
            )
            file.seek(0)
            first = file.read(_POINTER_BYTES) if read is not None else b""
        if read is None:
            missed.append(path)
        elif read.size_bytes < _POINTER_BYTES and is_pointer(first):
            self._made[path] = self._store.objects.write_blob(first)
        else:
            os.rename(incoming, place / read.sha256)
            pointer = pointer_to(read.sha256, read.size_bytes)
            self._made[path] = self._store.objects.write_blob(pointer)
        incoming.unlink(missing_ok=True)

    def finish(self) -> dict[InsidePath, ObjectId]:
        return self._made | self._converter.finish()


def _unchanged(file: FileIO, before: os.stat_result, copy: bytearray | None) -> Iterator[bytes]:
    """The content of a file, also appended to `copy`. Raises BrokenObjectError if it changes or
    cannot be read.
    """
    left = before.st_size
    while piece := _piece(file, left):
        left -= len(piece)
        if copy is not None:
            copy += piece
        yield piece
    after = os.fstat(file.fileno())
    if left or (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise BrokenObjectError
