"""Freezes the processes of one run, with the cgroup freezer or else ptrace, and reports how.

Never with SIGSTOP, which the processes can undo. A freeze that could not be verified is reported as
such.
"""

from __future__ import annotations

import os

from atoll.keeper import process_tree
from atoll.keeper.tracer import Tracer
from atoll.keeper.wire import CGROUP, PTRACE, UNVERIFIED, FreezeReply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from atoll.keeper.clients import Client
    from atoll.keeper.groups import Group

_FREEZE_S = 2.0
_TRACE_S = 20.0


class RunFreezer:
    """Of everything below the calling process: for clients until they leave, or until `resume`."""

    __slots__ = ("_clients", "_group", "_is_frozen", "_root", "_tracer", "is_paused")

    def __init__(self, group: Group | None) -> None:
        self._root = os.getpid()
        self._group = group
        self._tracer: Tracer | None = None
        self._is_frozen = False
        self._clients: set[Client] = set()
        self.is_paused = False

    @property
    def has_clients(self) -> bool:
        """Whether a client relies on it: then no process that could write may be resumed, even to
        end it.
        """
        return bool(self._clients)

    @property
    def is_active(self) -> bool:
        return self.is_paused or self.has_clients

    def acquire(self, client: Client | None) -> FreezeReply:
        """Hold everything for a client, or until `resume` without one; or verify that it is."""
        # A group that stays frozen would freeze every process that enters it meanwhile.
        ways = [self._trace, self._freeze] if client is None else [self._freeze, self._trace]
        if self._is_frozen or self._tracer is not None:
            ways = [self._freeze if self._is_frozen else self._trace]
        if client is None:
            self.is_paused = True
        else:
            self._clients.add(client)
        reasons = []
        for way in ways:
            how, reason = way()
            if how:
                # Counted when they are still: before, their number may change.
                return FreezeReply(how, processes=len(process_tree.descendants(self._root)))
            reasons.append(reason)
        return FreezeReply(
            UNVERIFIED, "; ".join(reasons), len(process_tree.descendants(self._root))
        )

    def leave(self, client: Client) -> bool:
        """A client does not need it any more; True if nothing is held from now on."""
        if client not in self._clients:
            return False
        self._clients.remove(client)
        return self._release_if_unused()

    def resume(self) -> bool:
        """As `leave`, for what was held without a client."""
        was_paused, self.is_paused = self.is_paused, False
        return was_paused and self._release_if_unused()

    def end(self) -> None:
        """Thaw everything, although clients relied on it: it is about to be killed."""
        self._clients.clear()
        self.is_paused = False
        self._release_if_unused()

    def note_stops(self, stops: list[process_tree.Stop]) -> None:
        for stop in stops:
            if self._tracer is None:
                self._tracer = Tracer(self._root)
            self._tracer.note_stop(stop)

    def _release_if_unused(self) -> bool:
        if self.is_active:
            return False
        self._thaw()
        if self._tracer is not None:
            tracer, self._tracer = self._tracer, None
            tracer.release()
        return True

    def _trace(self) -> tuple[str, str]:
        if self._tracer is None:
            self._tracer = Tracer(self._root)
        reason = self._tracer.hold(_TRACE_S)
        return (PTRACE, "") if reason is None else ("", reason)

    def _freeze(self) -> tuple[str, str]:
        """Verified once everything is in the group, and that is frozen."""
        group = self._group
        if group is None:
            return "", "there is no cgroup for it"
        self._is_frozen = True
        try:
            if group.freeze(_FREEZE_S) and self._is_inside(group) and group.is_frozen():
                return CGROUP, ""
        except OSError as error:
            self._thaw()
            return "", f"its cgroup cannot be frozen: {error.strerror}"
        self._thaw()
        return "", "not all of its processes are in a cgroup that can be frozen"

    def _is_inside(self, group: Group) -> bool:
        members = group.freezable()
        return all(
            process.pid in members or (process.is_dead and not _has_live_thread(process.pid))
            for process in process_tree.processes_under(self._root)
        )

    def _thaw(self) -> None:
        if not self._is_frozen or self._group is None:
            return
        self._is_frozen = False
        try:
            self._group.thaw()
        except OSError:  # the group is gone, and with it everything that was frozen
            return


def _has_live_thread(pid: int) -> bool:
    """A process may be shown as a zombie while its other threads continue."""
    try:
        names = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(name != str(pid) for name in names)
