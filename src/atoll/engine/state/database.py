"""The SQLite database of an Atoll home, in WAL mode: open, migrate, write, back up, check."""

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

from atoll.engine.state import backups, schema
from atoll.host import disk_space, locks
from atoll.model.errors import PrerequisiteError, StateError

Connection = sqlite3.Connection
SCHEMA_VERSION = schema.VERSION
NAME = "state.db"
REPAIR = "atoll gc restores it from a backup and from the files of the capsules"
_BUSY_S = 60.0
_DAMAGE = (
    sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR,
)  # fmt: skip
"""Primary result codes. SQLITE_ERROR includes a missing table."""


class DamagedError(StateError):
    """The database is missing or damaged; `atoll gc` restores it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint=REPAIR)


class Database:
    """A connection to the database. With `read_only` nothing in the home is written, not even a
    journal or a lock.
    """

    def __init__(self, home: Path, *, read_only: bool = False) -> None:
        self.home = home
        self.path = home / NAME
        self.read_only = read_only
        # The threads of a process share one connection.
        self._turn = threading.RLock()
        with self._explained():
            self._connect()

    def _connect(self) -> None:
        _require_file(self.home, self.path)
        if self.read_only:
            self._db = _open_unchanged(self.path)
        else:
            # SQLite would make it world-readable, and the files beside it get the same mode. An
            # existing file is not opened: closing it would drop this process's locks on it.
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            self._db = sqlite3.connect(
                self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
        self._db.row_factory = sqlite3.Row
        # Closed with the store, also when the migration below fails.
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
        """Reopens a file that another command has replaced: writes to the old one would be lost."""
        found = self._identity()
        if self.read_only or found == self._opened or self._db.in_transaction:
            return
        if found is None:
            # The whole home may have been removed: do not create a new one.
            raise DamagedError(f"the database `{self.path}` was removed")
        # The old file stays open meanwhile, so that its inode number is not reused.
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
                hint=f"mount -o remount,rw '{disk_space.mount_point(self.home)}'",
            )
        lock = locks.Lock(self.home / "migrate.lock")
        lock.acquire(wait=True)
        with lock:
            found = self._version()
            if found == 0:
                if remains(self.home):
                    raise DamagedError(f"`{self.path}` is empty, but capsules were created here")
                self._db.execute("PRAGMA journal_mode = WAL")
            elif found < SCHEMA_VERSION:
                self._copy()
            if found < SCHEMA_VERSION:
                self._db.executescript(schema.migration(found))

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Translates errors of SQLite and of the system."""
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
        """One transaction. Unless it is `durable`, a power cut may undo it as a whole: for state
        that does not survive a power cut anyway.
        """
        if self.read_only:
            raise PrerequisiteError(
                f"`{self.home}` is on a read-only filesystem: nothing can be changed there",
                hint=f"mount -o remount,rw '{disk_space.mount_point(self.home)}'",
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
                # A full disk leaves the transaction open, and later writes would be part of it.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            if durable and backups.is_due(self.home):
                self._back_up()

    def back_up(self) -> None:
        """Makes a backup now, so that a restore does not bring back what was revoked."""
        with self._turn:
            self._back_up()

    def _back_up(self) -> None:
        self._copy()

    def _copy(self) -> None:
        """Copies the database. A failed copy is retried after the next change."""
        with suppress(sqlite3.Error, OSError), backups.new_file(self.home) as path:
            self._db.execute("VACUUM INTO ?", (str(path),))

    def _rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        with self._turn, self._explained():
            self._follow()
            return self._db.execute(query, values).fetchall()

    def stamp(self) -> tuple[object, ...]:
        """Changes with every write to the database by any process."""
        [row] = self._rows("PRAGMA data_version")
        return self._opened, int(row[0]), self._db.total_changes


def _unusable(path: Path, message: str) -> PrerequisiteError:
    short = disk_space.find_shortage(path.parent)
    if short is not None:
        return PrerequisiteError(f"{message}; {short.message}", hint=short.hint)
    look = f"df -h '{path.parent}'; ls -ld '{path.parent}' '{path}'"
    return PrerequisiteError(message, hint=look)


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    if isinstance(error, sqlite3.ProgrammingError):
        # A mistake of the caller, such as the use of a closed store.
        return False
    # Python itself raises the error for text that is not UTF-8, without a code.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF in _DAMAGE or code == sqlite3.SQLITE_IOERR_SHORT_READ


def remains(home: Path) -> bool:
    """Whether the home has capsules or backups, so that there was a database."""
    return any(True for _ in home.glob("projects/*/*")) or bool(backups.found(home))


def _require_file(home: Path, path: Path) -> None:
    if os.path.isdir(path):
        raise DamagedError(f"`{path}` is a directory and not a database")
    if not os.path.lexists(path) and remains(home):
        raise DamagedError(f"the database `{path}` is missing, but capsules were created here")


def _open_unchanged(path: Path) -> sqlite3.Connection:
    """Opens a database on a read-only filesystem, without creating files beside it.

    If the journal has content, both are copied to memory.
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
    """Whether a file is an undamaged database of this or an earlier schema version."""
    try:
        uri = f"file:{quote(str(path))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            checked = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except (sqlite3.Error, OSError):
        return False
    return bool(0 < version <= SCHEMA_VERSION and checked == "ok")


def prepare(path: Path) -> None:
    """Migrates a copy of a backup, or an empty file, before it replaces the database.

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
