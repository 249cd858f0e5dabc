"""Filesystems in a file, to be filled up or lost: with copies of what had arrived at the disk.

Root only. They are mounted in a separate mount namespace (`unseen`): there no other process's
processes can hold them, and they go with the last of one's own, however that ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from atoll.host.process import run, wait_until
from atoll.keeper import calls

_ENDED_S = 20.0
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_NOT_MOUNTED = 32


class DiskKind(NamedTuple):
    make: tuple[str, ...]
    mount: str
    check: tuple[str, ...]
    size_bytes: int


KINDS = {
    # Nothing goes to the disk by itself for as long as a test lasts.
    "ext4": DiskKind(
        make=(
            *("mkfs.ext4", "-q", "-m0", "-b4096", "-Jsize=4"),
            "-Elazy_itable_init=0,lazy_journal_init=0",
        ),
        mount="loop,commit=600",
        check=("e2fsck", "-fp"),
        size_bytes=96 << 20,
    ),
    # Only a mount reads the journal of this one.
    "xfs": DiskKind(("mkfs.xfs", "-q"), mount="loop,nouuid", check=(), size_bytes=320 << 20),
}


def _call(*argv: str | Path, allowed: Collection[int] = (0,)) -> None:
    run(tuple(map(str, argv)), allowed=tuple(allowed))


class Disk:
    """`end` kills whatever still works on the disk; then it can be unmounted."""

    def __init__(self, kind: DiskKind, place: Path, end: Callable[[Path], None]) -> None:
        self.kind, self.at = kind, place / "disk"
        self.repo, self.home = self.at / "repo", self.at / "home"
        self._place, self._image, self._end = place, place / "image", end
        self._seen: set[bytes] = set()
        self.at.mkdir()
        with self._image.open("wb") as file:
            file.truncate(kind.size_bytes)
        _call(*kind.make, self._image)
        # The journal is long and empty, and every copy would be read and written with it.
        _call("fallocate", "--dig-holes", self._image)

    @contextlib.contextmanager
    def mounted(self, image: Path | None = None) -> Iterator[None]:
        _call("mount", "-o", self.kind.mount, image or self._image, self.at)
        try:
            yield
            self._end(self.home)
            self._require_quiet()
            _call("umount", self.at)
        except BaseException:
            self._end(self.home)
            _call("umount", "--lazy", self.at, allowed=(0, _NOT_MOUNTED))
            raise

    def _require_quiet(self) -> None:
        if not wait_until(lambda: not users_of(self.at), timeout_s=_ENDED_S):
            raise AssertionError(users_of(self.at))

    def commit_names(self) -> None:
        """What some other program's fsync does: names and sizes go to the disk, data does not."""
        handle = os.open(self.at / "other", os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(handle, os.urandom(8))
        os.fsync(handle)
        os.close(handle)

    def capture(self, name: str) -> Path | None:
        """A copy of the disk as it is; None when it has not changed since the last one."""
        copy = self._place / f"{name}.img"
        while (before := self._digest()) not in self._seen:
            _call("cp", "--sparse=always", self._image, copy)
            if self._digest() == before:
                self._seen.add(before)
                return copy
        return None

    def check(self, image: Path) -> None:
        """Recovers a copy as the tools of its filesystem do, which find nothing that is wrong."""
        if self.kind.check:
            _call(*self.kind.check, image, allowed=(0, 1))

    def _digest(self) -> bytes:
        digest = hashlib.blake2b()
        with self._image.open("rb") as file, contextlib.suppress(OSError):
            at = 0
            while True:
                # Fails behind the last data that there is.
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
                hole = os.lseek(file.fileno(), at, os.SEEK_HOLE)
                digest.update(f"{at}-{hole}".encode() + os.pread(file.fileno(), hole - at, at))
                at = hole
        return digest.digest()


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Mounts of this thread and its children are not visible to other processes meanwhile."""
    here = Path.cwd()
    with Path("/proc/thread-self/ns/mnt").open() as former:
        calls.unshare(calls.CLONE_NEWNS)
        try:
            calls.mount("none", "/", "", _MS_REC | _MS_PRIVATE)
            yield
        finally:
            calls.enter_namespace(former.fileno())
            os.chdir(here)


def users_of(place: Path) -> list[str]:
    """Who has something open below a directory or works there, this process included."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for link in (entry / "cwd", *(entry / "fd").iterdir()):
                if link.readlink().is_relative_to(place):
                    state = " ".join((entry / "stat").read_text().split()[:4])
                    found.append(f"{state} has {link.readlink()}")
    return found


def loops_of(place: Path) -> list[str]:
    """The loop devices whose files lie below a directory, removed files included."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if backing.read_text().startswith(f"{place}/"):
                found.append(backing.parents[1].name)
    return found


def require_no_loops(place: Path) -> None:
    """The kernel lets go of a disk a moment after its last user has."""
    if not wait_until(lambda: not loops_of(place), timeout_s=_ENDED_S):
        raise AssertionError(loops_of(place))


@contextlib.contextmanager
def filled(place: Path, *, room_bytes: int) -> Iterator[None]:
    """A file takes all of a filesystem, but for a little."""
    ballast = place / "ballast"
    state = os.statvfs(place)
    with ballast.open("wb", buffering=0) as file:
        most = state.f_bavail * state.f_frsize
        os.posix_fallocate(file.fileno(), 0, max(4096, most - (1 << 20)))
        file.seek(0, os.SEEK_END)
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        file.truncate(file.tell() - room_bytes)
        os.fsync(file.fileno())
    try:
        yield
    finally:
        ballast.unlink()
