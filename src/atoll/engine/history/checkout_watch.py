"""Client of the daemon's watch on checkouts, which reports changes since a base was frozen.

It is optional: without it, bases are compared with the checkout by time stamps and walks.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from atoll.drivers.layers.dependency_layers import NOT_WATCHED, DependencyLayers, WatchedChanges
from atoll.engine.network import daemon_client
from atoll.engine.state.session import Session
from atoll.host import files
from atoll.model.daemon_messages import ChangesReply, ChangesRequest
from atoll.model.errors import AtollError
from atoll.model.state import ProjectRecord

OFF = "ATOLL_WATCH"
"""Set to `off`, checkouts are not watched, and nothing is frozen in the background."""
_TIMEOUT_S = 2.0


def is_wanted(session: Session) -> bool:
    off = session.owner.get(OFF, "").lower() in ("off", "0", "no")
    return daemon_client.is_wanted(session) and not off


def ask_changes(
    session: Session, project: ProjectRecord, known: DependencyLayers | None
) -> WatchedChanges:
    """The position of the watch, and what has changed since `known` was frozen."""
    if not is_wanted(session):
        return NOT_WATCHED
    before = known or DependencyLayers()
    reply = daemon_client.find_answer(
        session.home,
        ChangesRequest(project.id, project.root, before.watch, before.position),
        ChangesReply,
        timeout_s=_TIMEOUT_S,
    )
    if reply is None or not reply.watch:
        return NOT_WATCHED
    is_continued = reply.watch == before.watch
    paths = reply.paths if is_continued else None
    return WatchedChanges(reply.watch, reply.position, paths, is_continued)


def note_use(session: Session, project: ProjectRecord) -> None:
    """Asks the daemon to watch the checkout of a project for a while, and to freeze its changes in
    the background.
    """
    if not is_wanted(session):
        return
    place = notes_of(session.home)
    # An optimization: errors are ignored.
    with suppress(OSError, AtollError):
        files.make_private_directory(place)
        (place / project.id).touch(mode=0o600)


def start_daemon(session: Session) -> None:
    """Starts the daemon if necessary, without waiting for it."""
    if is_wanted(session):
        with suppress(OSError, AtollError):
            daemon_client.begin(session)


def noted(home: Path) -> dict[str, float]:
    """The last use of each project, by id."""
    try:
        with os.scandir(notes_of(home)) as listing:
            return {entry.name: entry.stat(follow_symlinks=False).st_mtime for entry in listing}
    except OSError:
        return {}


def notes_of(home: Path) -> Path:
    return daemon_client.directory_of(home) / "watched"
