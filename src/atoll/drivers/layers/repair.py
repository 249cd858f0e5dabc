"""Repairs a workspace's repository whose branch was lost in a power cut.

The branch is set to the commit that was exported last, which the owner's repository has and the
capsule's history store does not. All of this is written to files that an agent could write to
before: directories are opened one by one, and no link is followed.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from atoll.drivers.layers import history, packs
from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.host import files
from atoll.model.plan import WorkspacePlan

_OBJECTS = (WORKSPACE, ".git", "objects")
_CHUNK_BYTES = 8 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OBJECT = re.compile("[0-9a-f]{38}([0-9a-f]{24})?")


def bring_base(plan: WorkspacePlan) -> None:
    """Copies what the base commit needs into the workspace, unless its history store has it."""
    wanted = history.missing_base(plan)
    if not wanted:
        return
    pool = Pool(plan.pool)
    tree = pool.tree(plan.upper)
    _remove_empty_objects(tree)
    with pool.building() as place:
        for name in packs.pack(plan.repository, place, wanted):
            # The index comes last: git sees a pack when its index is there.
            for suffix in ("pack", "idx"):
                _copy(place / f"{name}.{suffix}", tree, f"{name}.{suffix}")


def _copy(source: Path, tree: Path, name: str) -> None:
    relative = "/".join((*_OBJECTS, "pack", name))
    with source.open("rb") as stream:
        files.write_beneath(tree, relative, stream.read(_CHUNK_BYTES))
        while chunk := stream.read(_CHUNK_BYTES):
            files.write_beneath(tree, relative, chunk, append=True)


def _remove_empty_objects(tree: Path) -> None:
    """Loose objects of which only the name has reached the disk: git would take them for there."""
    opened = [os.open(tree, _DIRECTORY)]
    try:
        with suppress(OSError):
            for name in _OBJECTS:
                opened.append(os.open(name, _DIRECTORY, dir_fd=opened[-1]))
            for number in range(256):
                _remove_empty_in(f"{number:02x}", opened[-1])
    finally:
        for handle in opened:
            os.close(handle)


def _remove_empty_in(name: str, parent: int) -> None:
    try:
        handle = os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError:
        return
    try:
        for entry in [entry for entry in os.listdir(handle) if _OBJECT.fullmatch(entry)]:
            status = os.stat(entry, dir_fd=handle, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_size == 0:
                os.unlink(entry, dir_fd=handle)
    finally:
        os.close(handle)
