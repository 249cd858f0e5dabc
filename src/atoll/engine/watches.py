"""The daemon's watch on a checkout, from the outside: asked whenever a base is looked for.

Nothing waits for it: without a daemon, or with one that does not watch, the base is compared with
the checkout by stamps and walks.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from atoll.drivers.layers.carried import NOT_WATCHED, Carried, Watched
from atoll.engine import daemons
from atoll.engine.session import Session
from atoll.host import files
from atoll.model.errors import AtollError
from atoll.model.state import Project

OFF = "ATOLL_WATCH"
"""Set to `off`, checkouts are not watched, and nothing is frozen in the background."""
_PATIENCE_S = 2.0


def is_wanted(session: Session) -> bool:
    off = session.owner.get(OFF, "").lower() in ("off", "0", "no")
    return daemons.is_wanted(session) and not off


def ask_changes(session: Session, project: Project, known: Carried | None) -> Watched:
    """Where the watch is now, and what has changed since `known` was frozen."""
    if not is_wanted(session):
        return NOT_WATCHED
    before = known or Carried()
    reply = daemons.find_answer(
        session.home,
        {"do": "changes", "project": project.id, "root": project.root, "watch": before.watch,
         "position": before.position},
        timeout_s=_PATIENCE_S,
    )  # fmt: skip
    if reply is None:
        return NOT_WATCHED
    watch, position, paths = (reply.get(key) for key in ("watch", "position", "paths"))
    if not isinstance(watch, str) or not watch or not isinstance(position, int):
        return NOT_WATCHED
    is_continued = watch == before.watch
    if not is_continued or not isinstance(paths, list):
        return Watched(watch, position, None, is_continued)
    return Watched(watch, position, tuple(map(str, paths)), is_continued)


def note_use(session: Session, project: Project) -> None:
    """Has the daemon, when there is one, watch the checkout of a project for the next while, and
    freeze it in the background when it has changed.
    """
    if not is_wanted(session):
        return
    place = notes_of(session.home)
    # It only makes later commands faster.
    with suppress(OSError, AtollError):
        files.make_private_directory(place)
        (place / project.id).touch(mode=0o600)


def start_daemon(session: Session) -> None:
    """Starts a daemon, unless there is one, without waiting for it."""
    if is_wanted(session):
        with suppress(OSError, AtollError):
            daemons.begin(session)


def noted(home: Path) -> dict[str, float]:
    """The projects in use, each with the time of its last use."""
    try:
        with os.scandir(notes_of(home)) as listing:
            return {entry.name: entry.stat(follow_symlinks=False).st_mtime for entry in listing}
    except OSError:
        return {}


def notes_of(home: Path) -> Path:
    return daemons.directory_of(home) / "watched"
