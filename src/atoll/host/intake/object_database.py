"""Reads and writes objects of a temporary store without one program per object.

The owner's objects are read through one `git cat-file --batch`, which starts with the first request
and ends with the store. New objects go to a pack in the store's own directory: git sees them after
`flush`, and an import uses the pack as it is. Written trees and commits are kept in memory, so that
they can be read at once.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from atoll.host.intake.loose_objects import LooseObject, LooseObjects
from atoll.host.intake.pack_writer import BrokenObjectError, PackWriter
from atoll.host.intake.transfer import Transfer, TransferLimits, require_ids, writing
from atoll.host.pipes import Dialogue
from atoll.host.process import Program, converse
from atoll.model.errors import StateError
from atoll.model.untrusted import ObjectId, Untrusted, find_object_id

TREE = 0o040000
_BODY_BYTES = 64 << 20
"""The limit for a commit or tree, which are read as a whole."""
_CONTENT_BYTES = 1 << 20
"""Blobs up to this size are read in one piece."""
_TIMEOUT_S = 600.0
_ASKED_AT_ONCE = 256
"""The number of requests that fit into a pipe."""
_UNBOUNDED = TransferLimits(size_bytes=1 << 44, objects=1 << 31, seconds=None)
"""Objects written here are Atoll's; the import enforces limits."""
_ENTRY = re.compile(rb"([0-7]{5,6}) ([^\0/]+)\0", re.DOTALL)


class ObjectEntry(NamedTuple):
    """One line of a tree."""

    mode: int
    """As stored, which need not be the canonical form."""
    object_id: ObjectId


class ObjectDatabase:
    """Created and closed with a store."""

    def __init__(self, reader: Callable[[], Program], place: Path, algorithm: str) -> None:
        self._reader, self._place, self.algorithm = reader, place, algorithm
        self._dialogue: Dialogue | None = None
        self._stack = ExitStack()
        self._trees: dict[str, dict[bytes, ObjectEntry]] = {}
        self._roots: dict[str, ObjectId] = {}
        self._written: dict[ObjectId, None] = {}
        self._expected: set[ObjectId] = set()
        self._pack: PackWriter | None = None
        self._file: FileIO | None = None

    def close(self) -> None:
        self._stack.close()
        self._dialogue, self._file, self._pack = None, None, None

    # Reading.

    def tree_of(self, name: str) -> ObjectId:
        """The tree of a commit, or a tree itself. Raises StateError if it is neither."""
        require_ids(name)
        if name not in self._roots:
            ((kind, content),) = self._read([name])
            if kind == b"tree":
                self._trees[name] = _parse_tree(content, name)
                self._roots[name] = ObjectId(name)
            else:
                line = content.partition(b"\n")[0] if kind == b"commit" else b""
                found = find_object_id(Untrusted(line.removeprefix(b"tree ")))
                if found is None:
                    raise StateError(f"`{name}` has no tree")
                self._roots[name] = found
        return self._roots[name]

    def tree(self, name: ObjectId) -> dict[bytes, ObjectEntry]:
        """The entries of a tree, by name and in order. Raises StateError if it is malformed."""
        if name not in self._trees:
            self.load([name])
        return self._trees[name]

    def load(self, names: Iterable[ObjectId]) -> None:
        """Reads trees ahead, many at a time."""
        missing = [name for name in dict.fromkeys(names) if name not in self._trees]
        for start in range(0, len(missing), _ASKED_AT_ONCE):
            some = missing[start : start + _ASKED_AT_ONCE]
            for name, (kind, content) in zip(some, self._read(some), strict=True):
                if kind != b"tree":
                    raise StateError(f"`{name}` is not a tree")
                self._trees[name] = _parse_tree(content, name)

    def _read(self, names: Sequence[str]) -> list[tuple[bytes, bytes]]:
        """(type, content) of objects. Raises StateError if one is missing or far too large."""
        if self._dialogue is None:
            self._dialogue = self._stack.enter_context(
                converse(self._reader(), timeout_s=_TIMEOUT_S)
            )
        self._dialogue.ask("".join(f"{name}\n" for name in names).encode())
        return [self._answer(self._dialogue, name) for name in names]

    @staticmethod
    def _answer(dialogue: Dialogue, name: str) -> tuple[bytes, bytes]:
        words = dialogue.read_line().split(b" ")
        if len(words) != 3 or words[0] != name.encode() or not words[2].isdigit():
            raise StateError(f"the object `{name}` is missing in the owner's repository")
        size = int(words[2])
        if size > _BODY_BYTES:
            raise StateError(f"the object `{name}` is too large for a {words[1].decode()}")
        return words[1], dialogue.read(size + 1)[:-1]

    # Writing.

    def write_tree(self, entries: dict[bytes, ObjectEntry]) -> ObjectId:
        content = b"".join(
            b"%o %s\0%s" % (entry.mode, name, bytes.fromhex(entry.object_id))
            for name, entry in entries.items()
        )
        made = self._write(b"tree", content)
        self._trees[made] = entries
        self._roots[made] = made
        return made

    def write_commit(self, tree: ObjectId, content: bytes) -> ObjectId:
        made = self._write(b"commit", content)
        self._roots[made] = tree
        return made

    def write_blob(self, content: bytes) -> ObjectId:
        return self._write(b"blob", content)

    def expect(self, names: Iterable[ObjectId]) -> None:
        """Blobs that the owner has, which need not be written."""
        self._expected.update(names)

    def write_stream(self, size_bytes: int, pieces: Iterator[bytes]) -> ObjectId | None:
        """Writes a blob of any size; returns None if the number of bytes differs, or if `pieces`
        raises BrokenObjectError.
        """
        if size_bytes <= _CONTENT_BYTES:
            try:
                content = b"".join(pieces)
            except BrokenObjectError:
                return None
            return self.write_blob(content) if len(content) == size_bytes else None
        digest = self._digest(b"blob", size_bytes)

        def checked() -> Iterator[bytes]:
            left = size_bytes
            for piece in pieces:
                left -= len(piece)
                digest.update(piece)
                yield piece
            if left:
                raise BrokenObjectError

        try:
            self._writer().add(b"blob", size_bytes, checked())
        except BrokenObjectError:
            return None
        made = ObjectId(digest.hexdigest())
        self._written[made] = None
        return made

    def copy(self, name: ObjectId, loose: LooseObjects) -> LooseObject | None:
        """Copies and verifies a loose object of an agent; None if it is missing."""
        if name in self._written:
            return loose.load(name)
        found = loose.copy(name, self._writer())
        if found is not None:
            self._written[name] = None
        return found

    def _write(self, kind: bytes, content: bytes) -> ObjectId:
        digest = self._digest(kind, len(content))
        digest.update(content)
        made = ObjectId(digest.hexdigest())
        if not (made in self._written or made in self._trees or made in self._expected):
            self._writer().add_content(kind, content)
            self._written[made] = None
        return made

    def _digest(self, kind: bytes, size_bytes: int) -> hashlib._Hash:
        digest = hashlib.new(self.algorithm, usedforsecurity=False)
        digest.update(b"%s %d\0" % (kind, size_bytes))
        return digest

    def _writer(self) -> PackWriter:
        if self._pack is None:
            with writing(f"the scratch directory `{self._place}`"):
                path = self._place / f"made-{os.urandom(6).hex()}.pack"
                self._file = self._stack.enter_context(FileIO(path, "x+"))
            transfer = Transfer.start([], _UNBOUNDED)
            self._pack = PackWriter(self._file, transfer, algorithm=self.algorithm)
        return self._pack

    def take_pack(self) -> WrittenObject | None:
        """A finished pack of what was written since the last call; None if nothing was."""
        if self._pack is None or self._file is None:
            return None
        self._pack.finish()
        made = WrittenObject(
            self._file, self._pack.objects, self._pack.size_bytes, tuple(self._written)
        )
        self._pack, self._file, self._written = None, None, {}
        return made


class WrittenObject(NamedTuple):
    """A pack of objects written here."""

    file: FileIO
    objects: int
    size_bytes: int
    names: tuple[ObjectId, ...]
    """In dependency order."""


def _parse_tree(content: bytes, name: str) -> dict[bytes, ObjectEntry]:
    width = len(name) // 2
    found: dict[bytes, ObjectEntry] = {}
    place = 0
    while place < len(content):
        head = _ENTRY.match(content, place)
        if head is None or head.end() + width > len(content) or head[2] in found:
            raise StateError(f"the tree `{name}` is malformed")
        place = head.end() + width
        object_id = ObjectId(content[head.end() : place].hex())
        found[head[2]] = ObjectEntry(int(head[1], 8), object_id)
    return found
