"""The owner's browser profile of a capsule, through the capsule's time.

It lies in the capsule's directory on the host, where nothing inside can write: what a profile
holds, such as extensions, is run on the host. Which directory is the profile now, and which holds
that of a point, stands in the store, in the same transaction as the point. A directory that is not
named there was left by a crash, or is needed no more.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.drivers import registry
from atoll.engine.session import Session
from atoll.host import files
from atoll.model.errors import StateError
from atoll.model.state import Capsule

if TYPE_CHECKING:
    from atoll.host import trees

_PLACE = "browser"
_ASIDE = "new-"


def place_of(capsule: Capsule) -> Path:
    """Holds all profiles of a capsule, and the note of who has one open."""
    return Path(capsule.directory, _PLACE)


def driver_of(profile: str) -> str:
    """Whose profile it is."""
    return profile.partition("-")[0]


def current(session: Session, capsule: Capsule) -> str:
    """The name of the profile as the store has it now; empty when there is none."""
    return session.store.require_capsule(capsule.project_id, capsule.name).browser


def path_of(capsule: Capsule, profile: str) -> Path:
    return place_of(capsule) / profile


def require(session: Session, capsule: Capsule, driver: str) -> Path:
    """The profile of a capsule, made when there is none yet.

    Raises StateError when it has one that another kind of browser wrote.
    """
    found = current(session, capsule)
    if found and driver_of(found) != driver:
        raise StateError(
            f"the browser profile of `{capsule.name}` was written by {driver_of(found)}, "
            f"not by {driver}",
            hint=f"ATOLL_BROWSER={driver_of(found)}, or: atoll browser reset {capsule.name}",
        )
    name = found or _new_name(driver)
    files.make_private_directory(path_of(capsule, name))
    if not found:
        session.store.set_browser(capsule, name)
    return path_of(capsule, name)


def keep(session: Session, capsule: Capsule) -> str:
    """Names a directory that holds the profile as it is now, and that nobody writes to: that of
    the last point if nothing has changed, otherwise a copy. Nothing may write meanwhile.
    """
    live = current(session, capsule)
    if not live or not path_of(capsule, live).is_dir():
        return ""
    from atoll.host import trees  # noqa: PLC0415 - only with a profile

    points = session.store.snapshots(capsule)
    last = points[-1].browser if points else ""
    entries = _entries(capsule, live)
    if last and driver_of(last) == driver_of(live) and path_of(capsule, last).is_dir():
        change = trees.difference(_entries(capsule, last), entries)
        if not change.changed and not change.removed:
            return last
    return _copy(path_of(capsule, live), capsule, live, entries)


def put_back(capsule: Capsule, kept: str) -> str:
    """Names a new profile that is as the kept one was; empty when that was none."""
    if not kept:
        return ""
    if not path_of(capsule, kept).is_dir():
        raise StateError(
            f"the browser profile `{kept}` of `{capsule.name}` is gone",
            hint=f"atoll browser reset {capsule.name}",
        )
    return _copy(path_of(capsule, kept), capsule, kept, _entries(capsule, kept))


def hand_on(session: Session, origin: Capsule, kept: str, made: Capsule) -> None:
    """Gives a fork its own copy of the profile that a point of its origin has."""
    if kept and path_of(origin, kept).is_dir():
        name = _copy(path_of(origin, kept), made, kept, _entries(origin, kept))
        session.store.set_browser(made, name)


def forget(session: Session, capsule: Capsule) -> bool:
    """The next window starts from nothing; what points hold stays. False when there was none."""
    had = bool(current(session, capsule))
    session.store.set_browser(capsule, "")
    sweep(session, capsule)
    return had


def sweep(session: Session, capsule: Capsule) -> None:
    """Throws away what neither the capsule nor a point of it needs. The capsule's lock is ours."""
    place = place_of(capsule)
    named = {current(session, capsule), *(s.browser for s in session.store.snapshots(capsule))}
    for path in list(place.iterdir()) if place.is_dir() else []:
        if path.is_dir() and path.name not in named:
            files.discard(path, home=session.home)


def _new_name(driver: str) -> str:
    return f"{driver}-{os.urandom(6).hex()}"


def _entries(capsule: Capsule, profile: str) -> trees.Manifest:
    """All of a profile but its caches; sockets and the like are no files."""
    from atoll.host import trees  # noqa: PLC0415 - only with a profile

    is_lasting = registry.browser_driver(driver_of(profile)).is_lasting

    def skip(path: str, entry: os.DirEntry[str]) -> str | None:
        del entry
        return None if is_lasting(path) else "a cache"

    return trees.scan(path_of(capsule, profile), skip=skip).entries


def _copy(source: Path, capsule: Capsule, like: str, entries: trees.Manifest) -> str:
    """Whole or not at all: built aside, then renamed."""
    from atoll.host import copying  # noqa: PLC0415 - only with a profile

    name = _new_name(driver_of(like))
    files.make_private_directory(place_of(capsule))
    aside = place_of(capsule) / f"{_ASIDE}{name}"
    copying.copy_entries(source, aside, entries, digests=False)
    aside.rename(path_of(capsule, name))
    return name
