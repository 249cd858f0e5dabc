"""Reads an agent's loose objects and writes them to a pack.

A loose object is a compressed file that the agent may have written. It is accepted if it inflates
to exactly the size that it states and to the id of its path; otherwise it counts as missing. Blobs
of any size are processed in constant memory.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from io import FileIO
from typing import NamedTuple

from atoll.host.beneath import TreeReader
from atoll.host.intake.pack_writer import BrokenObjectError, PackWriter
from atoll.host.intake.transfer import Transfer
from atoll.model.errors import StateError
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, find_number, find_object_id

_FIRST = re.compile(rb"(commit|tree|blob|tag) (0|[1-9][0-9]{0,14})\0")
_FIRST_BYTES = 32
_CHUNK_BYTES = 1 << 18
_BODY_BYTES = 64 << 20
"""The limit for a commit, tag or tree, which are read as a whole."""
_UNFOLDED = 8
"""How many times the size limit all objects together may inflate to."""
_LINKS = re.compile(rb"(?:tree|parent|object) ([0-9a-f]{40}(?:[0-9a-f]{24})?)\n")
_GITLINK_MODE = b"160000"
_DIRECTORY = re.compile(rb"[0-9a-f]{2}")
_REST = re.compile(rb"[0-9a-f]{38}(?:[0-9a-f]{24})?")


class LooseObject(NamedTuple):
    kind: str
    links: list[ObjectId]
    """The objects that it refers to, if it is well-formed; without submodule commits."""


class LooseObjects:
    """The loose objects of the repository at `at`."""

    def __init__(self, reader: TreeReader, at: InsidePath, transfer: Transfer) -> None:
        self._reader, self._transfer = reader, transfer
        self._at = at.child(b"objects")
        self._unfolded_left = _UNFOLDED * transfer.limits.size_bytes

    def names(self) -> Iterator[ObjectId]:
        """All files with names of objects."""
        for directory in self._reader.names(self._at):
            if not _DIRECTORY.fullmatch(directory.name):
                continue
            try:
                entries = self._reader.names(directory)
            except StateError:
                raise self._transfer.too_many() from None
            for path in entries:
                if _REST.fullmatch(path.name):
                    found = find_object_id(Untrusted(directory.name + path.name))
                    if found is not None:
                        yield found

    def load(self, object_id: ObjectId) -> LooseObject | None:
        """None if there is none, or if it does not match its name."""
        return self.copy(object_id, None)

    def copy(self, object_id: ObjectId, pack: PackWriter | None) -> LooseObject | None:
        """As `load`, and adds the object to `pack`."""
        self._transfer.require_in_time()
        raw = object_id.encode()
        handle = self._reader.find_file(InsidePath(b"/".join([self._at.raw, raw[:2], raw[2:]])))
        if handle is None:
            return None
        with open(handle, "rb", buffering=0) as file:
            try:
                return self._copy(file, object_id, pack)
            except BrokenObjectError:
                return None

    def _copy(self, file: FileIO, object_id: ObjectId, pack: PackWriter | None) -> LooseObject:
        unfolding = _Unfolding(file, self._transfer)
        kind, size = unfolding.first()
        self._unfolded_left -= size
        if self._unfolded_left < 0:
            raise self._transfer.too_large()
        if kind != b"blob" and size > _BODY_BYTES:
            raise BrokenObjectError
        body = bytearray()

        def pieces() -> Iterator[bytes]:
            digest = hashlib.new(algorithm_of(object_id), usedforsecurity=False)
            digest.update(b"%s %d\0" % (kind, size))
            for piece in unfolding.rest(size):
                digest.update(piece)
                if kind != b"blob":
                    body.extend(piece)
                yield piece
            if digest.hexdigest() != object_id:
                raise BrokenObjectError

        if pack is None:
            deque(pieces(), maxlen=0)
        else:
            pack.add(kind, size, pieces())
        return LooseObject(kind.decode(), _links(kind, bytes(body), len(object_id) // 2))


class _Unfolding:
    """A compressed file, inflated piece by piece."""

    def __init__(self, file: FileIO, transfer: Transfer) -> None:
        self._file, self._transfer = file, transfer
        self._zlib = zlib.decompressobj()
        self._input = b""
        self._ahead = b""

    def first(self) -> tuple[bytes, int]:
        """The type and size that an object states."""
        while len(self._ahead) < _FIRST_BYTES and (piece := self._next(_FIRST_BYTES)):
            self._ahead += piece
        found = _FIRST.match(self._ahead)
        size = find_number(Untrusted(found[2]), most=1 << 40) if found else None
        if found is None or size is None:
            raise BrokenObjectError
        self._ahead = self._ahead[found.end() :]
        return found[1], size

    def rest(self, size: int) -> Iterator[bytes]:
        """Exactly `size` bytes; raises if there are fewer or more."""
        piece = self._ahead
        while piece:
            size -= len(piece)
            if size < 0:
                raise BrokenObjectError
            yield piece
            self._transfer.require_in_time()
            piece = self._next(_CHUNK_BYTES)
        if size or not self._zlib.eof:
            raise BrokenObjectError

    def _next(self, most: int) -> bytes:
        """The next piece; empty at the end."""
        while not self._zlib.eof:
            try:
                self._input = self._input or self._file.read(_CHUNK_BYTES)
                is_over = not self._input
                piece = self._zlib.decompress(self._input, most)
            except (zlib.error, OSError):
                raise BrokenObjectError from None
            self._input = self._zlib.unconsumed_tail
            if piece or is_over:
                return piece
        return b""


def algorithm_of(object_id: str) -> str:
    return "sha1" if len(object_id) == 40 else "sha256"


def _links(kind: bytes, body: bytes, id_bytes: int) -> list[ObjectId]:
    if kind == b"tree":
        return list(_tree_links(body, id_bytes))
    if kind == b"blob":
        return []
    # References come first; the message may contain anything.
    found = []
    place = 0
    while link := _LINKS.match(body, place):
        found.append(ObjectId(link[1].decode()))
        place = link.end()
        if kind == b"tag":
            break
    return found


def _tree_links(body: bytes, id_bytes: int) -> Iterator[ObjectId]:
    place = 0
    while place < len(body):
        end = body.find(b"\0", place)
        raw = body[end + 1 : end + 1 + id_bytes]
        if end < 0 or len(raw) < id_bytes:
            return
        if not body.startswith(_GITLINK_MODE + b" ", place):
            yield ObjectId(raw.hex())
        place = end + 1 + id_bytes


def copy_reachable(
    loose: LooseObjects,
    pack: PackWriter,
    tips: Iterable[ObjectId],
    *,
    without: Iterable[ObjectId],
    most: int,
) -> tuple[set[ObjectId], set[ObjectId]]:
    """Adds the loose objects reachable from `tips` through loose objects, except `without`.

    Returns all objects searched for, and those that are not loose; stops at `most`.
    """
    seen = set(without)
    absent: set[ObjectId] = set()
    ahead = [tip for tip in dict.fromkeys(tips) if tip not in seen]
    seen.update(ahead)
    while ahead:
        name = ahead.pop()
        found = loose.copy(name, pack)
        if found is None:
            absent.add(name)
        for link in found.links if found is not None else ():
            if link not in seen:
                seen.add(link)
                ahead.append(link)
        if len(seen) > most:
            break
    return seen, absent
