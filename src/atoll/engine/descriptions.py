"""A description beside each capsule's files: its rows of the database, should that be lost.

It is replaced after each change of what the capsule is made of. The database is what counts while
there is one: a description that cannot be written is removed and costs nothing but the chance to
find the capsule again with all that it had.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from atoll.host import files
from atoll.model.errors import StateError

NAME = "capsule.json"
_VERSION = 1
_LIMIT_BYTES = 16 << 20

Rows = dict[str, list[dict[str, Any]]]
"""Table → rows, by column."""


def save(directory: Path, rows: Rows, *, make: bool = False) -> None:
    """With `make` also the directory; else one that has been removed stays away."""
    path = directory / NAME
    content = json.dumps({"version": _VERSION, "rows": rows}).encode()
    try:
        if make:
            files.make_private_directory(directory)
        files.write_atomic(path, content, durable=False)
    except OSError:
        # An old one would be believed.
        with suppress(OSError):
            os.unlink(path)


def forget(directory: Path) -> None:
    """For a capsule of which something has been removed."""
    with suppress(OSError):
        os.unlink(directory / NAME)


def load(directory: Path) -> Rows | None:
    """None when there is none that is whole and is about this directory."""
    try:
        content = files.read_regular(directory / NAME, limit_bytes=_LIMIT_BYTES)
        raw = json.loads(content or b"")
        rows = raw["rows"] if raw["version"] == _VERSION else {}
        [capsule], [project] = rows["capsules"], rows["projects"]
        own = (capsule["directory"], capsule["name"], capsule["project_id"], project["id"])
    except (ValueError, TypeError, KeyError, StateError, OSError):
        return None
    place = directory.parent.name
    if own != (str(directory), directory.name, place, place) or not _is_plain(rows):
        return None
    return {str(table): found for table, found in rows.items()}


def _is_plain(rows: Any) -> bool:
    return isinstance(rows, dict) and all(
        isinstance(found, list) and all(isinstance(row, dict) for row in found)
        for found in rows.values()
    )
