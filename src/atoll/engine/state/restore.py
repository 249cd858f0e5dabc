"""Restores a lost or damaged database from the newest backup and the descriptions of capsules.

No file of a capsule is removed, and the damaged database is kept. A description is newer than any
backup and takes precedence. `atoll gc` stores the work of a capsule without a description as a
recovery point.
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
from atoll.engine.state import backups, database, descriptions
from atoll.engine.state.leases import find_damage, find_workspace_plan, workspace_plan
from atoll.engine.state.session import Session
from atoll.engine.state.store import Store
from atoll.host import disk_space, files, locks
from atoll.host.disk_space import is_read_only
from atoll.model.errors import AtollError, StateError
from atoll.model.plan import Lease, WorkspacePlan
from atoll.model.state import CapsuleRecord, CapsuleState

__all__ = ["Restored", "adopt", "is_read_only", "lost", "refresh", "repair"]

_SPEC_BYTES = 4 << 20
_DAMAGED = "damaged"
_ROOM_BYTES = 1 << 20
"""Needed for a new database in addition to its content: journal and index."""


class Restored(NamedTuple):
    """The result of a repair."""

    reason: str
    backup: Path | None
    """The backup that was used; None without a usable one."""
    kept: Path | None
    """The directory of the damaged files."""
    has_secrets: bool = False
    """Whether there are secrets, whose grants were withdrawn."""


def repair(home: Path) -> Restored | None:
    """Replaces a lost or damaged database; None when it is undamaged.

    Raises StateError for one of a newer Atoll, PrerequisiteError for one that cannot be opened.
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
        wrong = find_damage(store)
    except database.DamagedError as error:
        return error.message
    finally:
        store.close()
    return wrong[0] if wrong else None


def _replace(home: Path, reason: str) -> Restored:
    chosen = next((path for path in backups.found(home) if database.is_sound(path)), None)
    size_bytes = 0 if chosen is None else chosen.stat().st_size
    disk_space.Reserve(home).release(everything=True, needed_bytes=size_bytes + _ROOM_BYTES)
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
    return Restored(reason, chosen, kept, has_secrets=(home / "secrets").is_dir())


def _set_aside(home: Path) -> Path | None:
    """Moves the database and its journal away: SQLite would apply that to the new database."""
    names = {database.NAME + suffix for suffix in ("", "-wal", "-shm", "-journal")}
    found = [path for path in home.glob(f"{database.NAME}*") if path.name in names]
    if not found:
        return None
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    kept = home / _DAMAGED / f"{stamp}-{os.urandom(3).hex()}"
    files.make_private_directory(kept)
    for path in found:
        os.rename(path, kept / path.name)
    return kept


def _correct(store: Store) -> None:
    """Deletes from a restored backup what may have changed since.

    A capsule without files has been removed. One that was being created has been finished or
    removed; as unfinished it would be removed without its work being stored. Network rules of a
    capsule without a description may have been revoked, and so may any grant of a secret.
    """
    for capsule in store.capsules():
        is_described = descriptions.load(Path(capsule.directory)) is not None
        is_unfinished = capsule.state is CapsuleState.CREATING
        if (is_unfinished and not is_described) or not _has_files(store, capsule):
            store.forget_capsule(capsule)
        elif not is_described:
            for rule in store.grants(capsule):
                store.drop_grant(capsule, rule)
    store.drop_secret_grants()


def _has_files(store: Store, capsule: CapsuleRecord) -> bool:
    if os.path.lexists(capsule.directory):
        return True
    plan = find_workspace_plan(store, capsule)
    if plan is None:
        return False
    place = Pool(plan.pool).layers / plan.upper if plan.is_layered else Path(plan.path)
    return os.path.lexists(place)


def lost(session: Session) -> list[Path]:
    """Directories of capsules that are not in the database."""
    # The row of a capsule is created before its directory and deleted after it.
    found = [place for project in _below(session.home / "projects") for place in _below(project)]
    if not found:
        return []
    known = {capsule.directory for capsule in session.store.capsules()}
    missing = sorted(path for path in map(Path, found) if str(path) not in known and path.is_dir())
    return [path for path in missing if not locks.is_locked(_lock_of(session, path).path)]


def _below(place: str | Path) -> list[str]:
    """The paths in a directory. Every command calls it, so it is kept fast."""
    try:
        with os.scandir(place) as entries:
            return [entry.path for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []


def adopt(session: Session, *, dry_run: bool = False) -> list[Path]:
    """Adds capsules to the database from their descriptions; returns their directories."""
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
    """Updates the capsules of a restored backup from their descriptions."""
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
    """Whether all layers of the workspace exist; otherwise only its own files can be stored."""
    try:
        [plan] = [
            Lease.parse("workspace", json.loads(row["payload"])).plan
            for row in rows["parts"]
            if (row["snapshot"], row["part"]) == (0, "workspace")
        ]
        if not isinstance(plan, WorkspacePlan) or not plan.is_layered:
            return True
        pool = Pool(plan.pool)
        return all(os.path.isdir(pool.layers / name) for name in (*plan.layers, plan.upper))
    except (ValueError, KeyError, TypeError, StateError):
        return False


def _found_runs(directory: Path) -> Iterator[tuple[int, str, list[str], float]]:
    """Number, token, command and start time of each run that has a directory."""
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
