"""Turns files into git's blobs, trees and commits, in a store of ours, and publishes them.

Contents come from descriptors that a TreeReader opened and pass in constant memory. The agent's
attributes, filters and index have no say.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from io import FileIO
from types import MappingProxyType
from typing import NamedTuple

from atoll.host.beneath import TreeReader
from atoll.host.intake.commits import commit, diff, publish
from atoll.host.intake.content import (
    CONVERTED_BYTES,
    Conversion,
    TreeEntry,
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
from atoll.host.intake.ignore import is_git_name
from atoll.host.intake.store import OwnerSettings, Store, load_settings, open_store
from atoll.host.transfer import writing
from atoll.model.errors import StateError
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, as_content, find_object_id

__all__ = [
    "OwnerSettings", "Store", "TreeEntry", "blob_ids", "commit", "diff", "load_settings",
    "open_store", "publish", "tracked", "write_tree",
]  # fmt: skip

_CHUNK_BYTES = 1 << 20
_LINK_MODE = 0o120000
_FILE_MODES = (0o100644, 0o100755)
_SIZE_DIGITS = 20
_POINTER_BYTES = 1024
_REF = "refs/heads/written"
_NO_LINKS: Mapping[InsidePath, Untrusted] = MappingProxyType({})
_NO_GITLINKS: Mapping[InsidePath, ObjectId] = MappingProxyType({})


class _Read(NamedTuple):
    """A file as it was read once."""

    size_bytes: int
    blob: ObjectId
    has_crlf: bool
    sha256: str
    """Only of those that are asked for it."""


def _read_file(
    handle: int, store: Store, take: Callable[[bytes], object], *, with_sha256: bool = False
) -> _Read | None:
    """Hands the content to `take`; None when the file changes meanwhile or cannot be read."""
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
    store: Store,
    commit: str,
    reader: TreeReader,
    paths: Collection[InsidePath],
    *,
    links: Mapping[InsidePath, Untrusted] = _NO_LINKS,
    rules: Collection[InsidePath] = (),
) -> dict[InsidePath, ObjectId]:
    """The blobs that files, and the links whose targets are given, would become on top of `commit`.

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


def _read_path(store: Store, reader: TreeReader, path: InsidePath, how: Conversion) -> _Read | None:
    handle = reader.find_file(path)
    if handle is None:
        return None
    return _read_file(handle, store, len, with_sha256=how is Conversion.LFS)


def _is_converted(how: Conversion, read: _Read) -> bool:
    if read.size_bytes > CONVERTED_BYTES:
        return False
    return how is Conversion.GIT or (how is Conversion.LINE_ENDINGS and read.has_crlf)


def _pointer_id(store: Store, reader: TreeReader, path: InsidePath, read: _Read) -> ObjectId:
    content = reader.read(path, limit_bytes=min(read.size_bytes, _POINTER_BYTES))
    if content is not None and is_pointer(content):
        return read.blob
    return blob_id(pointer_to(read.sha256, read.size_bytes), store.settings.algorithm)


def _scratch(store: Store) -> str:
    """For errors."""
    return f"the scratch directory `{store.place}`"


class _Converter:
    """Has git convert copies of files."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._staged: list[InsidePath] = []
        self._found: dict[InsidePath, ObjectId] = {}

    def add(self, path: InsidePath, content: bytes) -> None:
        if is_attributes(path):
            # Git would believe it for others: it goes alone, after them.
            self._found |= self.finish()
        handle = stage(self._store, path)
        if handle is None:
            return
        with writing(_scratch(self._store)), open(handle, "wb", buffering=0) as file:
            _write(file, content)
        self._staged.append(path)
        if is_attributes(path):
            self._found |= self.finish()

    def finish(self) -> dict[InsidePath, ObjectId]:
        """The converted blobs; what git cannot convert is left out."""
        found = convert_staged(self._store, self._staged)
        for path in self._staged:
            (self._store.staging / os.fsdecode(path.raw)).unlink(missing_ok=True)
        self._staged.clear()
        return self._found | found


def _write(file: FileIO, content: bytes) -> None:
    while content:
        content = content[file.write(content) :]


def write_tree(  # noqa: PLR0913 - what a tree is made of
    store: Store,
    base: str,
    reader: TreeReader,
    changed: Mapping[InsidePath, int],
    removed: Collection[InsidePath],
    gitlinks: Mapping[InsidePath, ObjectId] = _NO_GITLINKS,
    *,
    links: Mapping[InsidePath, Untrusted] = _NO_LINKS,
    missed: list[InsidePath] | None = None,
) -> ObjectId:
    """The tree of `base`, a commit or a tree, with changes; its blobs are written to the store.

    `changed` gives modes (0o100644, 0o100755 or 0o120000), `links` the targets of links. What
    vanishes or changes while it is read stays as it is in `base` and is added to `missed`. Raises
    StateError when git does not accept a path.
    """
    gone = [] if missed is None else missed
    for path in (*changed, *gitlinks):
        if any(is_git_name(part) for part in path.parts):
            raise StateError(f"`{path.shown()}` cannot be in a tree: git reserves the name")
    regular = [path for path, mode in changed.items() if mode != _LINK_MODE]
    conversions = find_conversions(store, base, regular)
    rules = [path for path in regular if is_attributes(path)]
    conversions = apply_rules(store, base, reader, rules, conversions, regular)
    place = store.place / f"import-{os.urandom(6).hex()}"
    with writing(_scratch(store)), FileIO(place, "x+") as file:
        stream = _ImportStream(store, file)
        for path in sorted(changed):
            if changed[path] == _LINK_MODE:
                stream.add_link(path, links.get(path), gone)
            elif changed[path] in _FILE_MODES:
                how = conversions.get(path, Conversion.NONE)
                stream.add_file(path, reader, how, gone)
            else:
                raise ValueError(f"not a mode of a file: {changed[path]:o}")
        stream.finish(base, changed, removed, gitlinks)
        answer = store.run("fast-import", "--quiet", "--force", "--depth=0", stdin=file)
        os.unlink(file.name)
    # `ls` answers `040000 tree ID`, a tab and the path, which is empty.
    tree = find_object_id(Untrusted(answer.strip().rpartition(b" ")[2]))
    if tree is None:
        raise StateError("git wrote no tree")
    return tree


class _ImportStream:
    """The input of `git fast-import`: blobs first, then one commit."""

    def __init__(self, store: Store, file: FileIO) -> None:
        self._store, self._file = store, file
        self._marks: dict[InsidePath, int] = {}
        self._converter = _Converter(store)

    def add_link(
        self, path: InsidePath, target: Untrusted | None, missed: list[InsidePath]
    ) -> None:
        if target is None:
            missed.append(path)
        else:
            self._add_content(path, as_content(target))

    def _add_content(self, path: InsidePath, content: bytes) -> None:
        self._begin(path)
        self._end(self._file.tell() - _SIZE_DIGITS - 1, content)

    def add_file(
        self, path: InsidePath, reader: TreeReader, how: Conversion, missed: list[InsidePath]
    ) -> None:
        handle = reader.find_file(path)
        if handle is None:
            missed.append(path)
        elif how is Conversion.LFS:
            self._add_large(path, handle, missed)
        else:
            start = self._file.tell()
            self._begin(path)
            content_at = self._file.tell()
            read = _read_file(handle, self._store, lambda piece: _write(self._file, piece))
            if read is None:
                missed.append(path)
                self._take_back(path, start)
                return
            self._end(content_at - _SIZE_DIGITS - 1, b"")
            if _is_converted(how, read):
                self._converter.add(path, self._copy(content_at, read.size_bytes))

    def _add_large(self, path: InsidePath, handle: int, missed: list[InsidePath]) -> None:
        """Keeps the content for Git LFS and adds a pointer to it."""
        place = self._store.large_files
        place.mkdir(exist_ok=True)
        incoming = place / "incoming"
        with FileIO(incoming, "w+") as file:
            read = _read_file(
                handle, self._store, lambda piece: _write(file, piece), with_sha256=True
            )
            file.seek(0)
            first = file.read(_POINTER_BYTES) if read is not None else b""
        if read is None:
            missed.append(path)
        elif read.size_bytes < _POINTER_BYTES and is_pointer(first):
            self._add_content(path, first)
        else:
            os.rename(incoming, place / read.sha256)
            self._add_content(path, pointer_to(read.sha256, read.size_bytes))
        incoming.unlink(missing_ok=True)

    def _begin(self, path: InsidePath) -> None:
        self._marks[path] = mark = len(self._marks) + 1
        # The size is known afterwards.
        _write(self._file, b"blob\nmark :%d\ndata %s\n" % (mark, b"0" * _SIZE_DIGITS))

    def _end(self, size_at: int, content: bytes) -> None:
        _write(self._file, content)
        end = self._file.tell()
        size = end - size_at - _SIZE_DIGITS - 1
        os.pwrite(self._file.fileno(), b"%0*d" % (_SIZE_DIGITS, size), size_at)
        _write(self._file, b"\n")

    def _take_back(self, path: InsidePath, start: int) -> None:
        self._file.seek(start)
        self._file.truncate()
        del self._marks[path]

    def _copy(self, at: int, size_bytes: int) -> bytes:
        end = self._file.tell()
        self._file.seek(at)
        content = b""
        while piece := self._file.read(size_bytes - len(content)):
            content += piece
        self._file.seek(end)
        return content

    def finish(
        self,
        base: str,
        changed: Mapping[InsidePath, int],
        removed: Collection[InsidePath],
        gitlinks: Mapping[InsidePath, ObjectId],
    ) -> None:
        converted = self._converter.finish()
        answer = self._store.look("rev-parse", "--verify", f"{base}^{{tree}}")
        lines = [
            b"commit %s\ncommitter Atoll <atoll@localhost> 0 +0000\ndata 0\n" % _REF.encode(),
            b'M 040000 %s ""\n' % answer.strip(),
        ]
        lines += [b"D %s\n" % path.quoted() for path in sorted(removed)]
        for path, mark in self._marks.items():
            blob = converted[path].encode() if path in converted else b":%d" % mark
            lines.append(b"M %o %s %s\n" % (changed[path], blob, path.quoted()))
        for path, module in gitlinks.items():
            lines.append(b"M 160000 %s %s\n" % (module.encode(), path.quoted()))
        _write(self._file, b"".join(lines) + b'ls ""\n\n')
