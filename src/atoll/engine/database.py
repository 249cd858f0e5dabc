"""One SQLite database in WAL mode under Atoll's home: how it is opened, written and explained."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from atoll.engine import backups, schema
from atoll.host import locks, space
from atoll.model.errors import PrerequisiteError, StateError

Connection = sqlite3.Connection
SCHEMA_VERSION = schema.VERSION
NAME = "state.db"
REPAIR = "atoll gc restores it from a backup and from the files of the capsules"
_BUSY_S = 60.0
_DAMAGE = (
    sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR,
)  # fmt: skip
"""Primary result codes. The last one also stands for a table that is not there."""


class DamagedError(StateError):
    """The database is lost or cannot be understood; `atoll gc` makes it again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint=REPAIR)


class Database:
    """The database of one Atoll home.

    With `read_only` nothing is written anywhere in the home, not even a journal or a lock.
    """

    def __init__(self, home: Path, *, read_only: bool = False) -> None:
        self.home = home
        self.path = home / NAME
        self.read_only = read_only
        # Threads of one process take turns on the one connection.
        self._turn = threading.RLock()
        with self._explained():
            self._connect()

    def _connect(self) -> None:
        _require_file(self.home, self.path)
        if self.read_only:
            self._db = _open_unchanged(self.path)
        else:
            # SQLite would make it readable to all; the files beside it take its mode. Only at its
            # birth: closing a descriptor drops all locks that this process has on the file.
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            self._db = sqlite3.connect(
                self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
        self._db.row_factory = sqlite3.Row
        # Closed with the store, also when the migration below refuses.
        self.close = weakref.finalize(self, self._db.close)
        self._opened = self._identity()
        self._migrate()

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _follow(self) -> None:
        """Opens the file again that is there now: another command may have restored it, and what
        is written to a removed file is lost.
        """
        found = self._identity()
        if self.read_only or found == self._opened or self._db.in_transaction:
            return
        if found is None:
            # Also when the whole home was removed: nobody wants a new one.
            raise DamagedError(f"the database `{self.path}` was removed")
        # The old file stays open until the new one is: its inode number is not given again.
        close, self._opened = self.close, None
        self._connect()
        close()

    def _migrate(self) -> None:
        self._db.execute("PRAGMA foreign_keys = ON")
        found = self._version()
        if found == SCHEMA_VERSION:
            return
        if found > SCHEMA_VERSION:
            raise StateError(
                f"`{self.path}` was written by a newer Atoll (schema {found}, this one knows "
                f"{SCHEMA_VERSION})",
                hint="upgrade atoll, or set ATOLL_HOME to another directory",
            )
        if self.read_only:
            raise PrerequisiteError(
                f"`{self.path}` was written by an older Atoll and cannot be changed",
                hint=f"mount -o remount,rw '{space.mount_point(self.home)}'",
            )
        lock = locks.Lock(self.home / "migrate.lock")
        lock.acquire(wait=True)
        with lock:
            found = self._version()
            if found == 0:
                if remains(self.home):
                    raise DamagedError(f"`{self.path}` is empty, but capsules were made here")
                self._db.execute("PRAGMA journal_mode = WAL")
            elif found < SCHEMA_VERSION:
                self._copy()
            if found < SCHEMA_VERSION:
                self._db.executescript(schema.migration(found))

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns what SQLite says into what a user can act on."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.DatabaseError as error:
            if _is_damage(error):
                raise DamagedError(f"`{self.path}` is damaged: {error}") from error
            raise self._unusable(str(error)) from error
        except OSError as error:
            raise self._unusable(str(error)) from error

    def _unusable(self, reason: str) -> PrerequisiteError:
        return _unusable(self.path, f"the state in `{self.path}` cannot be used: {reason}")

    @contextmanager
    def _write(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction, on disk when it is over. One that is not `durable` a power cut may take,
        whole: for what does not outlive one in any case.
        """
        if self.read_only:
            raise PrerequisiteError(
                f"`{self.home}` is on a read-only filesystem: nothing can be changed there",
                hint=f"mount -o remount,rw '{space.mount_point(self.home)}'",
            )
        with self._turn, self._explained():
            self._follow()
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            try:
                self._db.execute("COMMIT")
            except sqlite3.Error:
                # A full disk leaves the transaction open, and all that comes later would be in it.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            if durable and backups.is_due(self.home):
                self._back_up()

    def back_up(self) -> None:
        """Makes a backup now: what was revoked must not come back with an older one."""
        with self._turn:
            self._back_up()

    def _back_up(self) -> None:
        self._copy()

    def _copy(self) -> None:
        """Copies the database as it is. One that fails is tried again after the next change."""
        with suppress(sqlite3.Error, OSError), backups.new_file(self.home) as path:
            self._db.execute("VACUUM INTO ?", (str(path),))

    def _rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        with self._turn, self._explained():
            self._follow()
            return self._db.execute(query, values).fetchall()

    def stamp(self) -> tuple[object, ...]:
        """Changes with every write to the database, ours or another process's."""
        [row] = self._rows("PRAGMA data_version")
        return self._opened, int(row[0]), self._db.total_changes


def _unusable(path: Path, message: str) -> PrerequisiteError:
    short = space.find_shortage(path.parent)
    if short is not None:
        return PrerequisiteError(f"{message}; {short.message}", hint=short.hint)
    look = f"df -h '{path.parent}'; ls -ld '{path.parent}' '{path}'"
    return PrerequisiteError(message, hint=look)


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    if isinstance(error, sqlite3.ProgrammingError):
        # Of ours, such as the use of a store that is closed.
        return False
    # Text that is not UTF-8 is found by Python, and has no code.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF in _DAMAGE or code == sqlite3.SQLITE_IOERR_SHORT_READ


def remains(home: Path) -> bool:
    """Whether the home shows that there was a database with something in it."""
    return any(True for _ in home.glob("projects/*/*")) or bool(backups.found(home))


def _require_file(home: Path, path: Path) -> None:
    if os.path.isdir(path):
        raise DamagedError(f"`{path}` is a directory and not a database")
    if not os.path.lexists(path) and remains(home):
        raise DamagedError(f"the database `{path}` is missing, but capsules were made here")


def _open_unchanged(path: Path) -> sqlite3.Connection:
    """Opens a database that nobody can write, without the files that SQLite keeps beside one.

    What is only in the journal is not in the file: both are copied to a temporary directory then.
    """
    wal = path.with_name(f"{path.name}-wal")
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    with suppress(FileNotFoundError):
        if wal.stat().st_size > 0:
            return _open_copy(path, wal)
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True,
        isolation_level=None, check_same_thread=False,
    )  # fmt: skip


def _open_copy(path: Path, wal: Path) -> sqlite3.Connection:
    target = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    with tempfile.TemporaryDirectory(prefix="atoll-") as place:
        for source in (path, wal):
            shutil.copyfile(source, Path(place, source.name))
        with closing(sqlite3.connect(Path(place, path.name))) as copy:
            copy.backup(target)
    return target


def is_sound(path: Path) -> bool:
    """Whether a file is a whole database that this version of Atoll knows."""
    try:
        uri = f"file:{quote(str(path))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            checked = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except (sqlite3.Error, OSError):
        return False
    return bool(0 < version <= SCHEMA_VERSION and checked == "ok")


def prepare(path: Path) -> None:
    """Makes a copy of a backup, or an empty file, ready to be put in the place of the database.

    Raises PrerequisiteError when it cannot be written.
    """
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            found = int(db.execute("PRAGMA user_version").fetchone()[0])
            if found < SCHEMA_VERSION:
                db.executescript(schema.migration(found))
    except sqlite3.OperationalError as error:
        message = f"the database `{path.with_name(NAME)}` cannot be restored: {error}"
        raise _unusable(path.with_name(NAME), message) from error
