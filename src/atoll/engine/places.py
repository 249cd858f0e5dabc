"""Where in a capsule a command starts: where its owner is in the project, if that exists inside."""

from __future__ import annotations

import os
from pathlib import Path

from atoll.engine.session import Session
from atoll.engine.views import host_path
from atoll.host.beneath import open_by_parts
from atoll.model.errors import StateError
from atoll.model.state import Capsule


def relative_place(root: Path, directory: str) -> str:
    """Where a directory is in a project, as a path below its root; empty when it is elsewhere."""
    place = Path(os.path.realpath(directory))
    top = Path(os.path.realpath(root))
    return str(place.relative_to(top)) if place != top and place.is_relative_to(top) else ""


def has_directory(session: Session, capsule: Capsule, relative: str) -> bool:
    """Whether the workspace holds a directory, which is reached without following a link."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        top = os.open(host_path(session, capsule, pin=False), flags)
    except (OSError, StateError):
        return False
    try:
        os.close(open_by_parts(top, os.fsencode(relative), flags))
    except OSError:
        return False
    finally:
        os.close(top)
    return True
