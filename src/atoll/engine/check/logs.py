"""The output of checks, in files below Atoll's home: `checks/PROJECT/TIME-ID.log`."""

from __future__ import annotations

import contextlib
import time

from atoll.engine.state import kept_logs
from atoll.engine.state.session import Session
from atoll.host import files

_KIND = "checks"
_YOUNG_S = 3600.0
"""A newer one may be of a check whose result is not stored yet."""


def write_log(session: Session, project_id: str, content: bytes, *, dropped_bytes: int) -> str:
    """Stores the end of an output, and returns its path; empty if that is not possible."""
    path = None
    head = f"[{dropped_bytes} bytes before this are not kept]\n".encode() if dropped_bytes else b""
    try:
        path = kept_logs.new_path(session.home, _KIND, project_id)
        files.write_new(path, head + content, mode=0o600)
    except OSError as error:
        # A full disk: the result still has the end of it.
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        session.warn(f"the output of a check was not stored: {error.strerror}")
        return ""
    kept_logs.prune(path.parent)
    return str(path)


def sweep(session: Session, *, dry_run: bool) -> list[str]:
    """Removes the logs that no result names; returns their paths."""
    removed = []
    for directory in sorted(session.home.glob(f"{_KIND}/*")):
        named = session.store.check_logs(directory.name)
        for path in sorted(directory.iterdir()):
            is_young = path.stat().st_mtime > time.time() - _YOUNG_S
            if str(path) in named or is_young or not kept_logs.NAME.fullmatch(path.name):
                continue
            removed.append(str(path))
            if not dry_run:
                path.unlink(missing_ok=True)
        if not dry_run:
            with contextlib.suppress(OSError):
                # Only an empty one.
                directory.rmdir()
    return removed
