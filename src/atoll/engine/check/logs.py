"""The output of checks, in files below Atoll's home: `checks/PROJECT/TIME-ID.log`."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from atoll.engine.state.session import Session
from atoll.host import files

KEPT = 500
"""Of each project."""
_YOUNG_S = 3600.0
"""A newer one may be of a check whose result is not stored yet."""
_NAME = re.compile(r"[0-9]{14}-[0-9a-f]{8}\.log")


def write_log(session: Session, project_id: str, content: bytes, *, dropped_bytes: int) -> str:
    """Stores the end of an output, and returns its path; empty if that is not possible."""
    directory = session.home / "checks" / project_id
    path = directory / f"{int(time.time() * 1000):014d}-{os.urandom(4).hex()}.log"
    head = f"[{dropped_bytes} bytes before this are not kept]\n".encode() if dropped_bytes else b""
    try:
        files.make_private_directory(directory.parent)
        files.make_private_directory(directory)
        files.write_new(path, head + content, mode=0o600)
    except OSError as error:
        # A full disk: the result still has the end of it.
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        session.warn(f"the output of a check was not stored: {error.strerror}")
        return ""
    _prune(directory)
    return str(path)


def _prune(directory: Path) -> None:
    """Removes the oldest logs."""
    found = sorted(name for name in os.listdir(directory) if _NAME.fullmatch(name))
    for name in found[:-KEPT]:
        (directory / name).unlink(missing_ok=True)


def sweep(session: Session, *, dry_run: bool) -> list[str]:
    """Removes the logs that no result names; returns their paths."""
    removed = []
    for directory in sorted(session.home.glob("checks/*")):
        named = session.store.check_logs(directory.name)
        for path in sorted(directory.iterdir()):
            is_young = path.stat().st_mtime > time.time() - _YOUNG_S
            if str(path) in named or is_young or not _NAME.fullmatch(path.name):
                continue
            removed.append(str(path))
            if not dry_run:
                path.unlink(missing_ok=True)
        if not dry_run:
            with contextlib.suppress(OSError):
                # Only an empty one.
                directory.rmdir()
    return removed
