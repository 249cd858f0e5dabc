"""Logs of commands in files below Atoll's home, `KIND/PROJECT/TIME-ID.log`: the latest ones of each
project are kept.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from atoll.host import files

KEPT = 500
"""Of each kind and project."""
NAME = re.compile(r"[0-9]{14}-[0-9a-f]{8}\.log")


def new_path(home: Path, kind: str, project_id: str) -> Path:
    """A free path in the directory of a project, which is made. Raises OSError."""
    directory = home / kind / project_id
    files.make_private_directory(directory.parent)
    files.make_private_directory(directory)
    return directory / f"{int(time.time() * 1000):014d}-{os.urandom(4).hex()}.log"


def prune(directory: Path) -> None:
    """Removes the oldest logs."""
    found = sorted(name for name in os.listdir(directory) if NAME.fullmatch(name))
    for name in found[:-KEPT]:
        (directory / name).unlink(missing_ok=True)
