"""The description of a capsule: a copy of its database rows beside its files, for restoring a
lost database.

It is replaced after each change. While there is a database the description is not read; one that
cannot be written is removed, and the capsule then cannot be restored completely.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from atoll.host import files
from atoll.model.errors import StateError
from atoll.model.state import SnapshotKind

NAME = "capsule.json"
_VERSION = 2
_WITHOUT_PARTS = 1
"""Has a table `leases` and columns for layers and browser profiles instead of `parts`."""
_LIMIT_BYTES = 16 << 20

Rows = dict[str, list[dict[str, Any]]]
"""Table → rows, by column."""


def save(directory: Path, rows: Rows, *, make: bool = False) -> None:
    """With `make`, creates the directory; otherwise a removed one is not created again."""
    path = directory / NAME
    content = json.dumps({"version": _VERSION, "rows": rows}).encode()
    try:
        if make:
            files.make_private_directory(directory)
        files.write_atomic(path, content, durable=False)
    except OSError:
        # An outdated description is worse than none.
        with suppress(OSError):
            os.unlink(path)


def forget(directory: Path) -> None:
    """Called before anything of the capsule is removed."""
    with suppress(OSError):
        os.unlink(directory / NAME)


def load(directory: Path) -> Rows | None:
    """None without a valid description of the capsule in this directory."""
    try:
        content = files.read_regular(directory / NAME, limit_bytes=_LIMIT_BYTES)
        raw = json.loads(content or b"")
        rows = raw["rows"] if raw["version"] in (_VERSION, _WITHOUT_PARTS) else {}
        [capsule], [project] = rows["capsules"], rows["projects"]
        own = (capsule["directory"], capsule["name"], capsule["project_id"], project["id"])
    except (ValueError, TypeError, KeyError, StateError, OSError):
        return None
    place = directory.parent.name
    if own != (str(directory), directory.name, place, place) or not _is_plain(rows):
        return None
    known: Rows = {str(table): found for table, found in rows.items()}
    return known if raw["version"] == _VERSION else _with_parts(known)


def _with_parts(rows: Rows) -> Rows | None:
    """The rows that the same capsule has in the tables of today."""
    try:
        parts = [(0, row["kind"], row["payload"]) for row in rows["leases"]]
        parts += [(0, "browser", row.get("browser", "")) for row in rows["capsules"]]
        for row in rows.get("snapshots", []):
            parts.append((row["number"], "workspace", row["layers"]))
            parts.append((row["number"], "browser", row.get("browser", "")))
            row["kind"] = _kind(row)
    except KeyError:
        return None
    made = [
        {"snapshot": number, "part": name, "payload": payload}
        for number, name, payload in parts
        if payload
    ]
    return {**{table: found for table, found in rows.items() if table != "leases"}, "parts": made}


def _kind(snapshot: dict[str, Any]) -> SnapshotKind:
    """As the migration in `schema.py`: by the message of the snapshot."""
    if not snapshot["automatic"]:
        return SnapshotKind.MANUAL
    is_rollback = str(snapshot["message"]).startswith("before rollback")
    return SnapshotKind.ROLLBACK if is_rollback else SnapshotKind.AUTOMATIC


def _is_plain(rows: Any) -> bool:
    return isinstance(rows, dict) and all(
        isinstance(found, list) and all(isinstance(row, dict) for row in found)
        for found in rows.values()
    )
