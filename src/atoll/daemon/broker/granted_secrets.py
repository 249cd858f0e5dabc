"""The brokered secrets of one capsule: which there are now, and their values, read when needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from atoll.daemon.broker.admission import Rejection
from atoll.engine.secret import brokered
from atoll.engine.secret.brokered import BrokeredSecret
from atoll.engine.state.session import Session
from atoll.model.errors import AtollError, SecretUnavailable
from atoll.model.secret import OriginKind, Substitution

_THREADS = 2
_WATCHED_S = 1.0
T = TypeVar("T")


class SecretRecords(Protocol):
    """Where grants and values come from."""

    def find(self) -> tuple[BrokeredSecret, ...]:
        """The valid grants. Does not block for long."""
        ...

    def read(self, secret: BrokeredSecret) -> tuple[Substitution, ...]:
        """The values now. May take seconds. Raises AtollError."""
        ...

    def note(self, secret: BrokeredSecret, refused: str) -> None:
        """Records a use, or why one was refused."""
        ...


class StoredSecrets:
    """`SecretRecords` of a capsule in the store."""

    def __init__(self, session: Session, capsule_id: int) -> None:
        self._session = session
        self._capsule_id = capsule_id

    def find(self) -> tuple[BrokeredSecret, ...]:
        return brokered.brokered(self._session, self._capsule_id)

    def read(self, secret: BrokeredSecret) -> tuple[Substitution, ...]:
        return brokered.substitutions(self._session, secret)

    def note(self, secret: BrokeredSecret, refused: str) -> None:
        brokered.note_use(self._session, secret, refused=refused)


class GrantedSecrets:
    """Reads values in threads of its own, so that a slow source of one capsule delays no other.

    Values are not kept: requests that come while a value is read share it, later ones have it read
    again.
    """

    def __init__(self, records: SecretRecords) -> None:
        self._records = records
        self._pool: ThreadPoolExecutor | None = None
        self._reading: dict[int, asyncio.Future[tuple[Substitution, ...]]] = {}
        self._watched: frozenset[int] = frozenset()
        self._watched_until = 0.0

    def find(self) -> tuple[BrokeredSecret, ...]:
        """The grants of this moment."""
        found = self._records.find()
        self._watched = frozenset(secret.grant.secret.id for secret in found)
        self._watched_until = time.monotonic() + _WATCHED_S
        return found

    def find_for(self, host: str) -> tuple[BrokeredSecret, ...]:
        return tuple(secret for secret in self.find() if host in hosts_of(secret))

    def watched_ids(self) -> frozenset[int]:
        """The ids of the secrets that are granted, as of a second ago: for those that ask all the
        time.
        """
        if time.monotonic() >= self._watched_until:
            self.find()
        return self._watched

    async def read(self, secret: BrokeredSecret) -> tuple[Substitution, ...]:
        """The values now; notes the use. Raises Rejection when there are none."""
        key = secret.grant.secret.id
        reading = self._reading.get(key)
        if reading is None:
            reading = asyncio.ensure_future(self._run(lambda: self._read(secret)))
            self._reading[key] = reading
            reading.add_done_callback(lambda done: self._forget(key, done))
        try:
            return await asyncio.shield(reading)
        except AtollError as error:
            raise _unavailable(secret, error) from None

    async def note_refused(self, secret: BrokeredSecret, why: str) -> None:
        await self._run(lambda: self._records.note(secret, why))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, secret: BrokeredSecret) -> tuple[Substitution, ...]:
        found = self._records.read(secret)
        self._records.note(secret, "")
        return found

    def _run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="secrets")
        return asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _forget(self, key: int, done: asyncio.Future[tuple[Substitution, ...]]) -> None:
        del self._reading[key]
        if not done.cancelled():
            # Those that still wait for it get the exception themselves.
            done.exception()


def hosts_of(secret: BrokeredSecret) -> tuple[str, ...]:
    scope = secret.grant.secret.delivery.broker
    return () if scope is None else scope.hosts


def _unavailable(secret: BrokeredSecret, error: AtollError) -> Rejection:
    """The owner's log has the reason. Inside, a reason that could name places of the host is left
    out; that of a login has none.
    """
    record = secret.grant.secret
    cure = f" ({error.hint})" if error.hint else ""
    logged = f"`{record.name}` is not available: {error.message}{cure}"
    if isinstance(error, SecretUnavailable) and record.origin.kind is OriginKind.LOGIN:
        return Rejection(503, error.message, hint=error.hint, logged=logged)
    message = f"the value of `{record.name}` is not available now"
    hint = "the owner can see why: atoll network CAPSULE"
    return Rejection(503, message, hint=hint, logged=logged)
