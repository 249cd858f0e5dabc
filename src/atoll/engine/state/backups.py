"""Backups of the database, below Atoll's home.

A backup is made after a change if the newest is older than a few minutes, and before a migration.
Projects, approvals and past runs are stored nowhere else; a capsule is also described beside its
files (`atoll.engine.state.descriptions`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from atoll.host import files

_DIRECTORY = "backups"
_KEPT = 3
_INTERVAL_S = 600.0


def is_due(home: Path) -> bool:
    """Whether the newest backup is too old: the directory changes with each one."""
    try:
        made = os.stat(home / _DIRECTORY).st_mtime
    except FileNotFoundError:
        return True
    # `abs`: the clock may have been set back.
    return abs(time.time() - made) > _INTERVAL_S


def found(home: Path) -> list[Path]:
    """The newest first."""
    return sorted((home / _DIRECTORY).glob("state-*.db"), reverse=True)


@contextmanager
def new_file(home: Path) -> Iterator[Path]:
    """An empty file, which becomes the newest backup if the block succeeds."""
    place = home / _DIRECTORY
    files.make_private_directory(place)
    aside = place / f".new-{os.urandom(6).hex()}"
    os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        yield aside
        files.sync_file(aside)
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        os.rename(aside, place / f"state-{stamp}.db")
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise
    for old in found(home)[_KEPT:]:
        old.unlink(missing_ok=True)
