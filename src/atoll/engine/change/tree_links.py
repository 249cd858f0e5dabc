"""Follows symbolic links within a git tree, without a checkout."""

from __future__ import annotations

import os
import stat

from atoll.engine.change.objects import ObjectReader
from atoll.engine.change.risk_rules import plain

_MOST_LINKS = 40
"""As the kernel: a longer chain cannot be followed."""
_TARGET_BYTES = 4096
_MOST_PARTS = 10_000


def find_escape(objects: ObjectReader, tip: str, path: bytes) -> str:
    """Why the symbolic link at `path` of a commit does not stay in the tree; empty if it does.

    Links on the way are followed. What does not exist is followed by name only.
    """
    place: list[bytes] = []
    ahead = path.split(b"/")[::-1]
    links = 0
    while ahead and len(ahead) < _MOST_PARTS:
        part = ahead.pop()
        if part in {b"", b"."}:
            continue
        if part == b"..":
            if not place:
                return "it leads out of the project"
            place.pop()
            continue
        if plain(os.fsdecode(part)) == ".git":
            return "it leads into `.git`"
        entry = objects.find_entry(tip, [*place, part])
        if entry is None or not stat.S_ISLNK(entry.mode):
            place.append(part)
            continue
        links += 1
        target = objects.find_blob(entry.object_id, limit_bytes=_TARGET_BYTES)
        if links > _MOST_LINKS or not target:
            return "it leads nowhere: in a circle, or its target is empty or too long"
        if target.startswith(b"/"):
            return "it leads to an absolute path"
        ahead += target.split(b"/")[::-1]
    return "it leads through too many directories" if ahead else ""
