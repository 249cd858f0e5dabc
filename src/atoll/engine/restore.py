"""Makes a lost or damaged database again, from the newest backup and from what capsules left.

Nothing of a capsule is removed here, and the damaged database is kept aside. A description beside
a capsule's files is newer than any backup, and counts. A capsule of which nothing is described is
left to the collection, which stores its work as a recovery point.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers.pool import Pool
from atoll.engine import backups, database, descriptions
from atoll.engine.leases import workspace_plan
from atoll.engine.session import Session
from atoll.engine.store import Store
from atoll.host import files, locks, space
from atoll.host.space import is_read_only
from atoll.model.errors import AtollError, StateError
from atoll.model.plan import WorkspacePlan
from atoll.model.state import Capsule, CapsuleState

__all__ = ["Restored", "adopt", "is_read_only", "lost", "refresh", "repair"]

_SPEC_BYTES = 4 << 20
_DAMAGED = "damaged"
_ROOM_BYTES = 1 << 20
"""Needed for a new database besides its content: the journal and the index of it."""


class Restored(NamedTuple):
    """What a repair did."""

    reason: str
    backup: Path | None
    """The one that was taken; None when there was none that could be used."""
    kept: Path | None
    """Where the damaged files are."""


def repair(home: Path) -> Restored | None:
    """Replaces a database that is lost or damaged; None when there is nothing to repair.

    Raises StateError for one of a newer Atoll, PrerequisiteError for one that cannot be reached.
    """
    lock = locks.Lock(home / "repair.lock")
    lock.acquire(wait=True)
    with lock:
        reason = _find_damage(home)
        return None if reason is None else _replace(home, reason)


def _find_damage(home: Path) -> str | None:
    try:
        store = Store(home)
    except database.DamagedError as error:
        return error.message
    try:
        wrong = store.damage()
    except database.DamagedError as error:
        return error.message
    finally:
        store.close()
    return wrong[0] if wrong else None


def _replace(home: Path, reason: str) -> Restored:
    chosen = next((path for path in backups.found(home) if database.is_sound(path)), None)
    size_bytes = 0 if chosen is None else chosen.stat().st_size
    space.Reserve(home).release(everything=True, needed_bytes=size_bytes + _ROOM_BYTES)
    fresh = home / f".{database.NAME}.{os.urandom(6).hex()}"
    os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        if chosen is not None:
            shutil.copyfile(chosen, fresh)
        database.prepare(fresh)
        files.sync_file(fresh)
        kept = _set_aside(home)
        os.rename(fresh, home / database.NAME)
    finally:
        for path in home.glob(f"{fresh.name}*"):
            path.unlink()
    files.sync_directory(home)
    if chosen is not None:
        store = Store(home)
        try:
            _correct(store)
        finally:
            store.close()
    return Restored(reason, chosen, kept)


def _set_aside(home: Path) -> Path | None:
    """Moves the database and the files beside it away; they would be taken for the new one's."""
    found = [path for path in home.glob(f"{database.NAME}*") if path.name in _own_names()]
    if not found:
        return None
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    kept = home / _DAMAGED / f"{stamp}-{os.urandom(3).hex()}"
    files.make_private_directory(kept)
    for path in found:
        os.rename(path, kept / path.name)
    return kept


def _own_names() -> tuple[str, ...]:
    return tuple(database.NAME + suffix for suffix in ("", "-wal", "-shm", "-journal"))


def _correct(store: Store) -> None:
    """Forgets what a backup says that is not so any more.

    A capsule without any files was removed later. One that was being made then was finished or
    undone later; as unfinished it would be removed without its work. What a capsule was allowed
    may have been revoked later.
    """
    for capsule in store.capsules():
        is_described = descriptions.load(Path(capsule.directory)) is not None
        is_unfinished = capsule.state is CapsuleState.CREATING
        if (is_unfinished and not is_described) or not _has_files(store, capsule):
            store.forget_capsule(capsule)
        elif not is_described:
            for rule in store.grants(capsule):
                store.drop_grant(capsule, rule)


def _has_files(store: Store, capsule: Capsule) -> bool:
    if os.path.lexists(capsule.directory):
        return True
    plans = [lease.plan for lease in store.leases(capsule)]
    plan = next((plan for plan in plans if isinstance(plan, WorkspacePlan)), None)
    if plan is None:
        return False
    place = Pool(plan.pool).layers / plan.upper if plan.pool else Path(plan.path)
    return os.path.lexists(place)


def lost(session: Session) -> list[Path]:
    """Directories of capsules that the database does not know, although it is sound."""
    # A capsule has its row before its directory, and keeps it longer.
    found = [place for project in _below(session.home / "projects") for place in _below(project)]
    if not found:
        return []
    known = {capsule.directory for capsule in session.store.capsules()}
    missing = sorted(path for path in map(Path, found) if str(path) not in known and path.is_dir())
    return [path for path in missing if not locks.is_locked(_lock_of(session, path).path)]


def _below(place: str | Path) -> list[str]:
    """The paths in a directory; every command asks, so that this is plain and fast."""
    try:
        with os.scandir(place) as entries:
            return [entry.path for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []


def adopt(session: Session, *, dry_run: bool = False) -> list[Path]:
    """Puts described capsules that the database does not know into it; returns their places."""
    adopted = []
    for directory in lost(session):
        rows = descriptions.load(directory)
        if rows is None or not _is_whole(rows):
            continue
        if dry_run:
            adopted.append(directory)
            continue
        lock = _lock_of(session, directory)
        if not lock.acquire():
            continue
        with lock:
            if _adopt(session, directory, rows):
                adopted.append(directory)
    return adopted


def refresh(session: Session) -> None:
    """After a repair: what is described counts also for capsules that the backup knows."""
    for capsule in session.store.capsules():
        rows = descriptions.load(Path(capsule.directory))
        lock = session.lock_of(capsule)
        if rows is not None and _is_whole(rows) and lock.acquire():
            with lock:
                _adopt(session, Path(capsule.directory), rows)


def _adopt(session: Session, directory: Path, rows: descriptions.Rows) -> bool:
    try:
        session.store.adopt(rows)
        capsule = session.store.find_capsule(directory.parent.name, directory.name)
        if capsule is None:
            return False
        workspace_plan(session, capsule)
    except (AtollError, LookupError, TypeError, ValueError) as error:
        session.warn(f"`{directory.name}` cannot be restored from `{directory}`: {error}")
        return False
    for number, token, argv, started_at in _found_runs(directory):
        session.store.add_found_run(capsule, number, token=token, argv=argv, started_at=started_at)
    session.store.describe([capsule])
    return True


def _is_whole(rows: descriptions.Rows) -> bool:
    """Whether the layers are there that a capsule lies on; else only its own files can be kept."""
    try:
        [payload] = [json.loads(r["payload"]) for r in rows["leases"] if r["kind"] == "workspace"]
        if not payload.get("pool"):
            return True
        pool = Pool(payload["pool"])
        needed = [*payload["layers"], payload["upper"]]
        return all(os.path.isdir(pool.layers / name) for name in needed)
    except (ValueError, KeyError, TypeError, StateError):
        return False


def _found_runs(directory: Path) -> Iterator[tuple[int, str, list[str], float]]:
    """Number, token, command and time of each run that left a directory."""
    for place in sorted((directory / "runs").glob("*")):
        if not place.name.isascii() or not place.name.isdigit():
            continue
        try:
            content = files.read_regular(place / "spec.json", limit_bytes=_SPEC_BYTES)
            spec = json.loads(content or b"")
            token, argv = str(spec["run"]), [str(word) for word in spec["argv"]]
            started_at = os.stat(place / "spec.json").st_mtime
        except (ValueError, KeyError, TypeError, StateError, OSError):
            continue
        yield int(place.name), token, argv, started_at


def _lock_of(session: Session, directory: Path) -> locks.Lock:
    return session.capsule_lock(directory.parent.name, directory.name)
