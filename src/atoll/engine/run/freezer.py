"""Freezes the processes of a capsule, and reports how that was verified.

The keeper of each run freezes its processes (`atoll.keeper.freezer`): with the freezer of their
cgroup, else with ptrace, never with a signal that they could undo. While they are frozen, no run
starts. The caller keeps a connection to every keeper: if it is killed, all processes are resumed.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Self

from atoll.engine.run import runs
from atoll.engine.state.session import Session
from atoll.host import view_client
from atoll.host.process import wait_until
from atoll.keeper import wire
from atoll.model.errors import IsolationError, PrerequisiteError, StateError
from atoll.model.state import CapsuleRecord, Run

_ANSWER_S = 60.0
_ENDED_S = 10.0
_ROUNDS = 5

PAUSED = "paused"
"""A file in the capsule's directory while it is paused."""


class FrozenProcesses(StrEnum):
    """How it is known that nothing writes."""

    NOTHING_RUNS = "nothing runs"
    CGROUP = "frozen by cgroup"
    PTRACE = "held by ptrace"
    NOT_VERIFIED = "not verified"


_HOW = {
    wire.NOTHING: FrozenProcesses.NOTHING_RUNS,
    wire.CGROUP: FrozenProcesses.CGROUP,
    wire.PTRACE: FrozenProcesses.PTRACE,
}
_WEAKEST_LAST = tuple(FrozenProcesses)


class _Answer(NamedTuple):
    how: FrozenProcesses
    reason: str = ""
    processes: int = 0
    is_known: bool = True
    """False if the keeper's version cannot freeze."""


class FreezeTiming:
    """A moment in which the processes of a capsule are held, as far as that can be verified."""

    def __init__(self, answers: Sequence[_Answer], keepers: Sequence[_Keeper]) -> None:
        self._keepers = keepers
        weakest = max(answers, key=lambda answer: _WEAKEST_LAST.index(answer.how), default=None)
        self.how = FrozenProcesses.NOTHING_RUNS if weakest is None else weakest.how
        self.reason = "" if weakest is None else weakest.reason
        """Why it is not verified."""

    def confirm(self) -> FrozenProcesses:
        """Asks all keepers whether they have held up to now, and returns how; for when all has
        been read.
        """
        if self.how is not FrozenProcesses.NOT_VERIFIED:
            for keeper in self._keepers:
                answer = keeper.ask(wire.MessageKind.HOLD, {})
                if answer.how is FrozenProcesses.NOT_VERIFIED:
                    self.how, self.reason = answer.how, answer.reason
        return self.how


def is_paused(capsule: CapsuleRecord) -> bool:
    return Path(capsule.directory, PAUSED).exists()


def require_running(capsule: CapsuleRecord) -> None:
    if is_paused(capsule):
        raise StateError(f"`{capsule.name}` is paused", hint=f"atoll resume {capsule.name}")


def pause(session: Session, capsule: CapsuleRecord) -> int:
    """Holds all processes of all runs until `resume`; returns how many. Fine when they are held.

    Raises IsolationError when it cannot be verified that all of them are held: then none is.
    """
    was_paused = is_paused(capsule)
    # First: from now on nothing new is started.
    Path(capsule.directory, PAUSED).touch(mode=0o600)
    with ExitStack() as stack:
        _, answers = _hold(session, capsule, stack, {"stays": True})
    failed = next((a for a in answers if a.how is FrozenProcesses.NOT_VERIFIED), None)
    if failed is not None:
        resume(session, capsule)
        raise IsolationError(
            f"`{capsule.name}` cannot be paused: {failed.reason}", hint=f"atoll stop {capsule.name}"
        )
    if not was_paused:
        _record(session, capsule, "capsule.paused")
    return sum(answer.processes for answer in answers)


def resume(session: Session, capsule: CapsuleRecord) -> int:
    """Resumes all processes; returns how many. Does nothing if they are not frozen."""
    count = 0
    for run in runs.alive(session, capsule):
        with _Keeper(session, run) as keeper:
            answer = keeper.ask(wire.MessageKind.RESUME, {})
        count += answer.processes if answer.is_known else _continue(session, run)
    if is_paused(capsule):
        Path(capsule.directory, PAUSED).unlink(missing_ok=True)
        _record(session, capsule, "capsule.resumed")
    return count


def _record(session: Session, capsule: CapsuleRecord, kind: str) -> None:
    """On a full disk the owner must still be able to pause, resume and stop."""
    try:
        session.store.add_event(capsule, kind)
    except PrerequisiteError as error:
        session.warn(f"the event `{kind}` of `{capsule.name}` was not recorded: {error}")


@contextmanager
def frozen(session: Session, capsule: CapsuleRecord) -> Iterator[FreezeTiming]:
    """Freezes all processes of all runs meanwhile. What could not be frozen continues, and the
    moment is `not verified`.
    """
    with ExitStack() as stack:
        stack.enter_context(view_client.gated(capsule.directory))
        keepers, answers = _hold(session, capsule, stack, {})
        yield FreezeTiming(answers, keepers)


def _hold(
    session: Session, capsule: CapsuleRecord, stack: ExitStack, how: dict[str, object]
) -> tuple[list[_Keeper], list[_Answer]]:
    """Asks the keepers of all runs to hold their processes, until no run has started meanwhile."""
    keepers: dict[int, _Keeper] = {}
    answers: list[_Answer] = []
    for _ in range(_ROUNDS):
        fresh = [run for run in runs.alive(session, capsule) if run.id not in keepers]
        if not fresh:
            break
        for run in fresh:
            keepers[run.id] = stack.enter_context(_Keeper(session, run))
            answers.append(keepers[run.id].ask(wire.MessageKind.HOLD, how))
    else:
        answers.append(
            _Answer(FrozenProcesses.NOT_VERIFIED, "runs start faster than they can be held")
        )
    return list(keepers.values()), answers


class _Keeper:
    """A connection to the keeper of a run; what it holds for us ends with it."""

    def __init__(self, session: Session, run: Run) -> None:
        self._session = session
        self._run = run
        self._decoder = wire.Decoder()
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()

    def ask(self, kind: wire.MessageKind, value: dict[str, object]) -> _Answer:
        """What it answers. A run that has ended meanwhile is `nothing runs`."""
        deadline = time.monotonic() + _ENDED_S
        while True:
            raw = self._exchange(kind, value)
            if raw is None:
                return _Answer(FrozenProcesses.NOTHING_RUNS)
            if raw.get("how") != wire.ENDING or time.monotonic() >= deadline:
                break
            wait_until(lambda: not runs.is_alive(self._session, self._run), timeout_s=0.2)
        if "how" not in raw:
            reason = "its keeper is of another version, or does not answer"
            return _Answer(FrozenProcesses.NOT_VERIFIED, reason, is_known=False)
        processes = raw.get("processes")
        return _Answer(
            _HOW.get(str(raw["how"]), FrozenProcesses.NOT_VERIFIED),
            str(raw.get("reason", "")),
            processes if isinstance(processes, int) else 0,
        )

    def _exchange(
        self, kind: wire.MessageKind, value: dict[str, object]
    ) -> dict[str, object] | None:
        """The answer; empty if there is none, None if the run has ended."""
        try:
            if self._socket is None:
                self._socket = wire.connect(self._run.directory, timeout_s=_ANSWER_S)
                hello = {"role": "control", "rows": 24, "cols": 80}
                self._socket.sendall(wire.encode_json(wire.MessageKind.HELLO, hello))
            self._socket.sendall(wire.encode_json(kind, value))
            return self._receive(self._socket)
        except (OSError, wire.WireError):
            return None if self._is_over() else {}

    def _receive(self, sock: socket.socket) -> dict[str, object] | None:
        while data := sock.recv(1 << 16):
            for kind, payload in self._decoder.feed(data):
                if kind is wire.MessageKind.HELD:
                    return wire.parse_json(payload)
                if kind is wire.MessageKind.ERROR:
                    return {}
        return None if self._is_over() else {}

    def _is_over(self) -> bool:
        return wait_until(lambda: not runs.is_alive(self._session, self._run), timeout_s=_ENDED_S)


def _continue(session: Session, run: Run) -> int:
    """For a run that an older version has stopped by signals."""
    members = [process.pid for process in runs.processes(session, run)]
    for pid in reversed(members):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return len(members)
