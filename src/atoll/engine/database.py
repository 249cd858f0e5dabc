"""One SQLite database in WAL mode under Atoll's home: how it is opened, written and explained."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from atoll.engine import schema
from atoll.host import locks
from atoll.model.errors import PrerequisiteError, StateError

Connection = sqlite3.Connection
SCHEMA_VERSION = schema.VERSION
_BUSY_S = 60.0


class Database:
    """The database of one Atoll home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.path = home / "state.db"
        # Threads of one process take turns on the one connection.
        self._turn = threading.RLock()
        with self._explained():
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
            self._migrate()

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
        lock = locks.Lock(self.home / "migrate.lock")
        lock.acquire(wait=True)
        with lock:
            found = self._version()
            if found == 0:
                self._db.execute("PRAGMA journal_mode = WAL")
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
        except (sqlite3.OperationalError, OSError) as error:
            raise PrerequisiteError(
                f"the state in `{self.path}` cannot be used: {error}",
                hint=f"df -h '{self.home}'; ls -ld '{self.home}'",
            ) from error
        except sqlite3.DatabaseError as error:
            raise StateError(
                f"`{self.path}` is damaged: {error}",
                hint=f"mv '{self.path}' '{self.path}.damaged' && atoll gc "
                "(work in capsules becomes recovery points)",
            ) from error

    @contextmanager
    def _write(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction, on disk when it is over. One that is not `durable` a power cut may take,
        whole: for what does not outlive one in any case.
        """
        with self._turn, self._explained():
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        with self._turn, self._explained():
            return self._db.execute(query, values).fetchall()

    def stamp(self) -> tuple[int, int]:
        """Changes with every write to the database, ours or another process's."""
        [row] = self._rows("PRAGMA data_version")
        return int(row[0]), self._db.total_changes
