"""Where in a capsule a command starts: where its owner is in the project, if that exists inside."""

from __future__ import annotations

import os
from pathlib import Path

from atoll.drivers import registry
from atoll.engine.leases import workspace_plan
from atoll.engine.session import Session
from atoll.engine.views import open_view
from atoll.host import views
from atoll.host.beneath import open_by_parts
from atoll.model.state import Capsule


def relative_place(root: Path, directory: str) -> str:
    """Where a directory is in a project, as a path below its root; empty when it is elsewhere."""
    place = Path(os.path.realpath(directory))
    top = Path(os.path.realpath(root))
    return str(place.relative_to(top)) if place != top and place.is_relative_to(top) else ""


def has_directory(session: Session, capsule: Capsule, relative: str) -> bool:
    """Whether the workspace holds a directory, which is reached without following a link."""
    place = _workspace(session, capsule)
    if place is None:
        return False
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        top = os.open(place, flags)
    except OSError:
        return False
    try:
        os.close(open_by_parts(top, os.fsencode(relative), flags))
    except OSError:
        return False
    finally:
        os.close(top)
    return True


def _workspace(session: Session, capsule: Capsule) -> Path | None:
    """Where the host finds it for a moment."""
    plan = workspace_plan(session, capsule)
    if not plan.pool:
        return Path(capsule.workspace)
    place = registry.layered_driver(plan.driver).place(plan)
    if place is not None:
        return place
    open_view(session, capsule)
    answer = views.ask(capsule.directory, {"ping": True})
    return None if answer is None else Path(f"/proc/{answer[0]['pid']}/root{capsule.workspace}")
