"""Git LFS stores, the owner's and Atoll's own: how objects get into them. No git-lfs is started.

An object is written under a temporary name, synced and renamed once its size and SHA-256 are those
of its pointer. So the store never holds an object that is incomplete or not what its name says.
Blocks of zeros become holes: a sparse file does not cost more disk here than where it came from.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from atoll.host import files
from atoll.host.transfer import writing
from atoll.model.lfs import Pointer

_WHAT = "the owner's Git LFS objects"
_OID = re.compile("[0-9a-f]{64}")
_BLOCK = bytes(4096)
_PIECE_BYTES = 1 << 20


class LfsStore(NamedTuple):
    objects: Path
    what: str = _WHAT
    """For messages."""

    @classmethod
    def of(cls, repository: str, storage: str = "") -> LfsStore:
        """`storage` is the owner's setting `lfs.storage`; by default the objects are in the git
        directory, to which a relative path refers, too.
        """
        place = os.path.join(repository, os.path.expanduser(storage) or "lfs")
        return cls(Path(place, "objects"))

    def path_of(self, pointer: Pointer) -> Path:
        return self.objects / pointer.place

    def has(self, pointer: Pointer) -> bool:
        """Whether there is a file of the right name and size."""
        try:
            found = self.path_of(pointer).stat()
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == pointer.size_bytes

    def all(self) -> list[Pointer]:
        """The objects that are there, by name and size."""
        found = sorted(self.objects.glob("*/*/*"))
        return [Pointer(p.name, p.stat().st_size) for p in found if _OID.fullmatch(p.name)]

    def take(self, pointer: Pointer, pieces: Iterable[bytes]) -> bool:
        """Stores an object; False, with nothing stored, when the content is not the pointer's.

        Reads at most one piece beyond the size that the pointer names. Raises DriverError when
        the store cannot be written.
        """
        target = self.path_of(pointer)
        aside = target.with_name(f"{target.name}.{os.urandom(6).hex()}")
        with writing(self.what):
            _make_directories(target.parent)
            try:
                if not _write(aside, pointer, pieces):
                    return False
                os.replace(aside, target)
                files.sync_directory(target.parent)
            finally:
                aside.unlink(missing_ok=True)
        return True

    def add(self, pointer: Pointer, source: LfsStore) -> bool:
        """Stores an object of another store: by a hard link, whose content is not looked at, or as
        a copy. Returns False as `copy` does; raises as `take`.
        """
        return self.has(pointer) or self._link(pointer, source) or self.copy(pointer, source)

    def copy(self, pointer: Pointer, source: LfsStore) -> bool:
        """Stores a copy of an object, whose content is checked; False when the source does not
        have it, or it is not the pointer's. Raises as `take`.
        """
        if not source.has(pointer):
            return False
        try:
            file = source.path_of(pointer).open("rb", buffering=0)
        except OSError:
            return False
        with file:
            return self.take(pointer, pieces(file))

    def _link(self, pointer: Pointer, source: LfsStore) -> bool:
        """False when that is not possible, or when another user could change the object."""
        if not source.has(pointer):
            return False
        target = self.path_of(pointer)
        try:
            real = Path(os.path.realpath(source.path_of(pointer)))
            status = real.stat()
            if status.st_uid != os.geteuid() or status.st_mode & stat.S_IWOTH:
                return False
            _make_directories(target.parent)
            # Its writer may not have synced it.
            files.sync_file(real)
            os.link(real, target)
            files.sync_directory(target.parent)
        except OSError:
            return False
        return True


def pieces(file: FileIO) -> Iterator[bytes]:
    """What can be read of a file; an error ends it, and then the hash is wrong."""
    with suppress(OSError):
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _make_directories(place: Path) -> None:
    """Makes a directory and those above it, durably."""
    if place.is_dir():
        return
    _make_directories(place.parent)
    place.mkdir(exist_ok=True)
    files.sync_directory(place.parent)


def _write(path: Path, pointer: Pointer, pieces: Iterable[bytes]) -> bool:
    digest, size = hashlib.sha256(usedforsecurity=False), 0
    with open(path, "xb", buffering=0, opener=_open_unshared) as file:
        for piece in pieces:
            size += len(piece)
            if size > pointer.size_bytes:
                return False
            digest.update(piece)
            _write_sparse(file, piece)
        if (size, digest.hexdigest()) != (pointer.size_bytes, pointer.oid):
            return False
        # The file may end with a hole.
        file.truncate(size)
        os.fsync(file.fileno())
    return True


def _open_unshared(path: str, flags: int) -> int:
    """Whatever the umask is, only the owner can write."""
    return os.open(path, flags, 0o644)


def _write_sparse(file: FileIO, piece: bytes) -> None:
    """Writes at the file's position, and skips blocks of zeros."""
    view, start = memoryview(piece), 0
    for at in range(0, len(piece), len(_BLOCK)):
        end = min(at + len(_BLOCK), len(piece))
        if piece.startswith(_BLOCK[: end - at], at):
            _write_all(file, view[start:at])
            file.seek(end - at, os.SEEK_CUR)
            start = end
    _write_all(file, view[start:])


def _write_all(file: FileIO, rest: memoryview) -> None:
    while rest:
        rest = rest[file.write(rest) :]
