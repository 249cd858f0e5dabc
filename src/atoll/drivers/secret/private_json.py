"""The two files of a vault: versioned JSON that only their owner can read."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from atoll.host import files
from atoll.model.errors import StateError

_LIMIT_BYTES = 64 << 20


def load(path: Path, *, form: str, version: int) -> dict[str, Any] | None:
    """The content of a file of this format; None when there is none.

    Raises StateError when others can read or write it, and when it is damaged or newer.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    _require_private(path, status)
    content = files.read_regular(path, limit_bytes=_LIMIT_BYTES)
    if content is None:
        return None
    try:
        found = json.loads(content)
        given, found_version = found["format"], found["version"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise damaged(path, "it is not valid JSON of this format") from None
    if given != form or type(found_version) is not int:
        raise damaged(path, f"it is not of the format `{form}`")
    if found_version > version:
        raise StateError(
            f"`{path}` was written by a newer Atoll (version {found_version}, this one knows "
            f"{version})",
            hint="upgrade atoll, or set ATOLL_HOME to another directory",
        )
    return dict(found)


def save(path: Path, content: dict[str, Any], *, form: str, version: int) -> None:
    """Replaces the file atomically, with mode 0600."""
    whole = {"format": form, "version": version, **content}
    files.write_atomic(path, json.dumps(whole, indent=1).encode())
    files.sync_directory(path.parent)


def damaged(path: Path, why: str) -> StateError:
    return StateError(
        f"`{path}` is damaged: {why}",
        hint=f"restore it from a backup, or give up all stored values: rm -r '{path.parent}'",
    )


def _require_private(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise StateError(
            f"`{path}` belongs to user id {status.st_uid}, not to {os.geteuid()}: it is not used",
            hint=f"ls -l '{path}'",
        )
    if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
        raise StateError(
            f"`{path}` can be read or written by others (mode {stat.S_IMODE(status.st_mode):04o}): "
            "it is not used",
            hint=f"chmod 600 '{path}'",
        )
