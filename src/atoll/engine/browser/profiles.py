"""The owner's browser profile as a part of a capsule.

Profiles are directories below the capsule's directory on the host, where no process inside can
write: the browser on the host runs what a profile contains, such as extensions. A snapshot refers
to a directory that nothing writes to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.drivers import registry
from atoll.engine.browser import headless, windows
from atoll.engine.browser.windows import place_of
from atoll.engine.state.parts import Part
from atoll.engine.state.session import Session
from atoll.host import files
from atoll.model.enclosure import Enclosure
from atoll.model.errors import StateError
from atoll.model.state import CapsuleRecord, PartChange, Run, Snapshot

if TYPE_CHECKING:
    from atoll.host.tree import manifests

_NAME = "browser"
_ASIDE = "new-"


class BrowserProfile(Part):
    """The payload is the name of the directory that holds the profile."""

    name = _NAME

    def stop(self, session: Session, capsule: CapsuleRecord) -> None:
        del session
        windows.end_window(capsule)

    def quiesce(self, session: Session, capsule: CapsuleRecord) -> AbstractContextManager[None]:
        return windows.suspended(session, capsule)

    def snapshot(self, session: Session, capsule: CapsuleRecord, *, busy: bool) -> PartChange:
        """Refers to the directory of the last snapshot when nothing has changed since."""
        del busy
        live = current(session, capsule)
        if not live or not path_of(capsule, live).is_dir():
            return PartChange(current=live)
        entries, last = _entries(capsule, live), _last(session, capsule)
        if _is_copy(capsule, last, live, entries):
            return PartChange(last, live)
        return PartChange(_copy(path_of(capsule, live), capsule, live, entries), live)

    def restore(self, session: Session, capsule: CapsuleRecord, target: Snapshot) -> PartChange:
        """The directory in use becomes that of the new snapshot: nothing writes to it any more."""
        live, kept = current(session, capsule), target.parts.get(_NAME, "")
        if not kept:
            return PartChange(live)
        if not path_of(capsule, kept).is_dir():
            raise StateError(
                f"the browser profile `{kept}` of `{capsule.name}` is missing",
                hint=f"atoll browser reset {capsule.name}",
            )
        entries = _entries(capsule, kept)
        return PartChange(live, _copy(path_of(capsule, kept), capsule, kept, entries))

    def fork(
        self, session: Session, origin: CapsuleRecord, point: Snapshot, made: CapsuleRecord
    ) -> None:
        kept = point.parts.get(_NAME, "")
        if kept and path_of(origin, kept).is_dir():
            name = _copy(path_of(origin, kept), made, kept, _entries(origin, kept))
            session.store.set_part(made, _NAME, name)

    def sweep(
        self, session: Session, capsule: CapsuleRecord, *, dry_run: bool = False
    ) -> list[str]:
        points = session.store.snapshots(capsule)
        used = {current(session, capsule), *(point.parts.get(_NAME, "") for point in points)}
        place = place_of(capsule)
        unused = [
            path
            for path in (sorted(place.iterdir()) if place.is_dir() else ())
            if path.is_dir() and path.name not in used
        ]
        for path in [] if dry_run else unused:
            files.discard(path, home=session.home)
        return [str(path) for path in unused]

    def has_changed(self, session: Session, capsule: CapsuleRecord) -> bool:
        live, last = current(session, capsule), _last(session, capsule)
        if not live or not path_of(capsule, live).is_dir():
            return bool(last)
        return not _is_copy(capsule, last, live, _entries(capsule, live))

    def warnings(self, session: Session, capsule: CapsuleRecord) -> Sequence[str]:
        """An open browser has state that it has not saved yet."""
        found = {
            "window": windows.find_window(capsule),
            "browser": headless.find_inside(session, capsule),
        }
        open_ones = [what for what, it in found.items() if it is not None]
        if not open_ones:
            return ()
        warning = (
            f"the {' and the '.join(open_ones)} of `{capsule.name}` is open: what pages stored in "
            "the last half minute may be missing in the snapshot"
        )
        return (warning,)

    def variables(
        self, session: Session, capsule: CapsuleRecord, inside: Enclosure
    ) -> Mapping[str, str]:
        return headless.variables(session, capsule, inside)

    def end_run(self, session: Session, capsule: CapsuleRecord, run: Run) -> None:
        browser = headless.find_inside(session, capsule)
        if browser is not None and browser.id == run.id:
            headless.close_inside(session, capsule)

    def report(self, session: Session, capsule: CapsuleRecord) -> Mapping[str, str]:
        found = current(session, capsule)
        if not found:
            return {}
        return {"driver": driver_of(found), "profile": str(path_of(capsule, found))}


def driver_of(profile: str) -> str:
    """The browser driver that wrote a profile."""
    return profile.partition("-")[0]


def current(session: Session, capsule: CapsuleRecord) -> str:
    """The name of the profile directory in use; empty when there is none."""
    return session.store.part(capsule, _NAME)


def _last(session: Session, capsule: CapsuleRecord) -> str:
    """The name of the profile directory of the last snapshot; empty when it has none."""
    points = session.store.snapshots(capsule)
    return points[-1].parts.get(_NAME, "") if points else ""


def path_of(capsule: CapsuleRecord, profile: str) -> Path:
    return place_of(capsule) / profile


def require(session: Session, capsule: CapsuleRecord, driver: str) -> Path:
    """The directory of the capsule's profile, created if necessary.

    Raises StateError when another kind of browser wrote it.
    """
    found = current(session, capsule)
    if found and driver_of(found) != driver:
        raise StateError(
            f"the browser profile of `{capsule.name}` was written by {driver_of(found)}, "
            f"not by {driver}",
            hint=f"ATOLL_BROWSER={driver_of(found)}, or: atoll browser reset {capsule.name}",
        )
    name = found or _new_name(driver)
    if not found:
        # First: `sweep` removes directories that no payload refers to.
        session.store.set_part(capsule, _NAME, name)
    files.make_private_directory(path_of(capsule, name))
    return path_of(capsule, name)


def forget(session: Session, capsule: CapsuleRecord) -> bool:
    """Makes the next window start with an empty profile; snapshots keep theirs. False when there
    was none.
    """
    had = bool(current(session, capsule))
    session.store.set_part(capsule, _NAME, "")
    BrowserProfile().sweep(session, capsule)
    return had


def _new_name(driver: str) -> str:
    return f"{driver}-{os.urandom(6).hex()}"


def _entries(capsule: CapsuleRecord, profile: str) -> manifests.Manifest:
    """The files of a profile without its caches."""
    from atoll.host.tree import manifests  # noqa: PLC0415 - only with a profile

    is_lasting = registry.browser_driver(driver_of(profile)).is_lasting

    def skip(path: str, entry: os.DirEntry[str]) -> str | None:
        del entry
        return None if is_lasting(path) else "a cache"

    return manifests.scan(path_of(capsule, profile), skip=skip).entries


def _is_copy(capsule: CapsuleRecord, last: str, live: str, entries: manifests.Manifest) -> bool:
    """Whether the directory `last` holds the files `entries` of `live`."""
    from atoll.host.tree import manifests  # noqa: PLC0415 - only with a profile

    if not last or driver_of(last) != driver_of(live) or not path_of(capsule, last).is_dir():
        return False
    change = manifests.difference(_entries(capsule, last), entries)
    return not change.changed and not change.removed


def _copy(source: Path, capsule: CapsuleRecord, like: str, entries: manifests.Manifest) -> str:
    """Copies into a temporary directory first, which is then renamed; returns the new name."""
    from atoll.host.tree import layer_copy  # noqa: PLC0415 - only with a profile

    name = _new_name(driver_of(like))
    files.make_private_directory(place_of(capsule))
    aside = place_of(capsule) / f"{_ASIDE}{name}"
    layer_copy.copy_entries(source, aside, entries, digests=False)
    aside.rename(path_of(capsule, name))
    return name
