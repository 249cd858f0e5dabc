"""Writes git packs of undeltified objects."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable
from io import FileIO

from atoll.host.intake.transfer import Transfer, writing

_CODES = {b"commit": 1, b"tree": 2, b"blob": 3, b"tag": 4}
_HEADER = struct.Struct(">4sII")
_CHUNK_BYTES = 1 << 18
_FAST = 1


class BrokenObjectError(Exception):
    """The content of an object does not match its declared size or id."""


class PackWriter:
    """Writes a pack of undeltified objects to a file."""

    def __init__(self, file: FileIO, transfer: Transfer, *, algorithm: str) -> None:
        self._file, self._transfer, self._algorithm = file, transfer, algorithm
        self._start = file.tell()
        self.objects = 0
        self.size_bytes = 0
        self._write(_HEADER.pack(b"PACK", 2, 0))

    def _write(self, piece: bytes) -> None:
        self.size_bytes += len(piece)
        if self.size_bytes > self._transfer.limits.size_bytes:
            raise self._transfer.too_large()
        with writing():
            while piece:
                piece = piece[self._file.write(piece) :]

    def add(self, kind: bytes, size_bytes: int, pieces: Iterable[bytes]) -> None:
        """Adds an object. If `pieces` raises BrokenObjectError, the pack is unchanged."""
        self._require_room()
        before, at = self.size_bytes, self._file.tell()
        try:
            self._write(_entry_header(_CODES[kind], size_bytes))
            packer = zlib.compressobj(_FAST)
            for piece in pieces:
                self._write(packer.compress(piece))
            self._write(packer.flush())
        except BrokenObjectError:
            self._file.seek(at)
            self._file.truncate()
            self.size_bytes = before
            raise
        self.objects += 1

    def add_content(self, kind: bytes, content: bytes) -> None:
        """Adds an object from memory with a single write."""
        self._require_room()
        header = _entry_header(_CODES[kind], len(content))
        self._write(header + zlib.compress(content, _FAST))
        self.objects += 1

    def _require_room(self) -> None:
        if self.objects >= self._transfer.limits.objects:
            raise self._transfer.too_many()

    def finish(self) -> None:
        """Writes the number of objects and the checksum."""
        digest = hashlib.new(self._algorithm, usedforsecurity=False)
        with writing():
            self._file.seek(self._start)
            self._file.write(_HEADER.pack(b"PACK", 2, self.objects))
            self._file.seek(self._start)
            while piece := self._file.read(_CHUNK_BYTES):
                digest.update(piece)
        self._write(digest.digest())


def _entry_header(code: int, size: int) -> bytes:
    """An object's type and size in the pack format."""
    head = bytearray([code << 4 | size & 0x0F])
    size >>= 4
    while size:
        head[-1] |= 0x80
        head.append(size & 0x7F)
        size >>= 7
    return bytes(head)
