"""Copy-on-write by the filesystem itself: btrfs subvolumes, and clones of single files."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from atoll.host import files
from atoll.keeper.handles import Opened

_FICLONE = 0x40049409
_SUBVOL_CREATE = 0x5000940E
_SNAP_DESTROY = 0x5000940F
_SNAP_CREATE_V2 = 0x50009417
_ROOT_INODE = 256


def create(path: Path) -> None:
    """Creates a subvolume. Raises OSError if the filesystem has none."""
    _call(path.parent, _SUBVOL_CREATE, struct.pack("=q4088s", 0, _name(path)))


def snapshot(source: Path, target: Path) -> None:
    """Creates a writable snapshot of a subvolume. Raises OSError if it is not one."""
    with Opened(os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as handle:
        arguments = struct.pack("=qQQ32x4040s", handle, 0, 0, _name(target))
        _call(target.parent, _SNAP_CREATE_V2, arguments)


def remove(path: Path, *, within: Path) -> None:
    """Removes a subvolume, or empties it if only root may remove it; a missing one is fine."""
    if not os.path.lexists(path):
        return
    try:
        _call(path.parent, _SNAP_DESTROY, struct.pack("=q4088s", 0, _name(path)))
    except OSError:
        # Without the mount option `user_subvol_rm_allowed` an empty one is removed as a directory.
        files.remove_tree(path, within=within)


def is_volume(path: Path) -> bool:
    """Whether a directory is a subvolume's root, on a filesystem with subvolumes."""
    return os.stat(path).st_ino == _ROOT_INODE


def clone_file(source: Path, target: Path) -> None:
    with open(source, "rb") as reader, open(target, "wb") as writer:
        fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())


def _name(path: Path) -> bytes:
    return os.fsencode(path.name)


def _call(directory: Path, request: int, arguments: bytes) -> None:
    with Opened(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as handle:
        # A writable buffer may have any size.
        fcntl.ioctl(handle, request, bytearray(arguments))
