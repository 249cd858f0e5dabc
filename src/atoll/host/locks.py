"""Locks that are released when their holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from atoll.host.process import wait_until
from atoll.keeper.handles import Opened


class Lock:
    """An exclusive lock on a file, which the kernel releases when its last holder dies.

    Programs that inherit `fd` hold it too: after a crash the lock stays until the tools that the
    command started have exited.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1

    def acquire(self, *, wait: bool = False) -> bool:
        """Takes the lock; returns False if it is taken and `wait` is not set."""
        if wait:
            return self._try(fcntl.LOCK_EX)
        # `is_locked` shares the lock for a moment: retry.
        return wait_until(
            lambda: self._try(fcntl.LOCK_EX | fcntl.LOCK_NB), timeout_s=0.05, interval_s=0.005
        )

    def _try(self, how: int) -> bool:
        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, how)
            except BlockingIOError:
                os.close(handle)
                return False
            except BaseException:
                os.close(handle)
                raise
            if self._still_at_path(handle):
                self.fd = handle
                return True
            # The previous holder removed the file between open and lock.
            os.close(handle)

    def _still_at_path(self, handle: int) -> bool:
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(handle))

    def release(self, *, remove: bool = False) -> None:
        if self.fd < 0:
            return
        if remove and self._still_at_path(self.fd):
            self.path.unlink(missing_ok=True)
        os.close(self.fd)
        self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release(remove=True)


def is_locked(path: Path) -> bool:
    """Whether a live process holds the lock."""
    return not _can_share(path, fcntl.LOCK_SH | fcntl.LOCK_NB)


def await_unlocked(path: Path) -> None:
    """Waits until no live process holds the lock."""
    _can_share(path, fcntl.LOCK_SH)


def _can_share(path: Path, how: int) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


@contextmanager
def hold_directory(path: str | Path, *, shared: bool = False) -> Iterator[int]:
    """Locks a directory itself, which leaves no file, and waits until that is possible.

    A program that inherits the descriptor holds the lock until it exits.
    """
    with Opened(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as handle:
        fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield handle
