"""What the checks need of the capsule that they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from atoll.engine.state.session import Session
from atoll.model.state import CapsuleRecord, Snapshot

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class CapsuleHandle(Protocol):
    """A handle on a capsule."""

    session: Session
    record: CapsuleRecord

    def alone(self) -> AbstractContextManager[None]: ...

    def snapshot(self, message: str = "", *, automatic: bool = False) -> Snapshot: ...

    def rollback(self, target: Snapshot | None = None) -> Snapshot: ...

    def require_snapshot(self, text: str | None = None) -> Snapshot: ...
