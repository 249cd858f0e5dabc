"""Capsule views from the outside: borrowed for a question, asked to start a run, told to end.

A view is held by its keeper's holder (`atoll.keeper.holder`), which listens in the capsule's
directory. Who borrows it also holds its lock for as long as it lives.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from atoll.host import hierarchies
from atoll.keeper import asking
from atoll.model.errors import StateError

_PATIENCE_S = 20.0
_ABANDONED = 126


class Borrowed(NamedTuple):
    """Descriptors of a view: its lock, which whoever enters keeps, and its namespaces."""

    lock: int
    namespaces: tuple[int, ...]
    group: dict[str, str]
    """The directories of its group of processes (`atoll.keeper.groups`), by their use."""

    def entering(
        self, cwd: str | None, drop: Callable[[], None], *, last: int
    ) -> Callable[[], None]:
        """For the child, between fork and exec; `drop` gives up what it must not keep.

        The child gets the signal `last` when the thread that asks dies, however that happens.
        """
        from atoll.keeper import calls  # noqa: PLC0415 - libc is not for every command

        asker = os.getpid()

        def enter() -> None:
            for namespace in self.namespaces:
                calls.enter_namespace(namespace)
            drop()
            if last != signal.SIGKILL:
                # Our own handler would take it until the program is executed, and do nothing.
                signal.signal(last, signal.SIG_DFL)
            # After the change of user and namespace, which would take the wish back.
            if not calls.die_with_parent(last, asker):
                os._exit(_ABANDONED)
            if cwd is not None:
                os.chdir(cwd)

        return enter


def ask(
    directory: str, request: dict[str, object], fds: tuple[int, ...] = ()
) -> tuple[dict[str, object], list[int]] | None:
    """What the holder in `directory` answers; None when there is none (any more)."""
    try:
        with asking.connect(directory, timeout_s=_PATIENCE_S) as sock:
            return asking.ask(sock, request, fds)
    except (FileNotFoundError, ConnectionError, EOFError):
        return None


@contextmanager
def gated(directory: str) -> Iterator[None]:
    """No run starts meanwhile in the view in `directory`, if one is held."""
    try:
        sock = asking.connect(directory, timeout_s=_PATIENCE_S)
    except (FileNotFoundError, ConnectionError):
        yield
        return
    with sock:
        with suppress(ConnectionError, EOFError):
            asking.ask(sock, {"hold": True})
        yield


@contextmanager
def borrowed(directory: str) -> Iterator[Borrowed]:
    """The view in `directory`, for a child that enters it."""
    answer = ask(directory, {"join": True})
    if answer is None:
        raise StateError(f"nobody holds the view in `{directory}`", hint="try again")
    fds = answer[1]
    try:
        group = answer[0].get("group")
        told = group if isinstance(group, dict) else {}
        if answer[0].get("is_scoped") and not hierarchies.can_enter(told.values()):
            # As where there are no groups: it is limited by itself.
            told = {}
        yield Borrowed(lock=fds[0], namespaces=tuple(fds[1:]), group=told)
    finally:
        for fd in fds:
            os.close(fd)
