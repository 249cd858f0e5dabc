"""Runs: started through a keeper, observed through its lock and its status file.

The database does not decide whether a run is active: a run is active while its lock is held, and
its outcome is what the keeper observed. If the keeper ended without a status, the run is `lost`,
and its processes are found by their marker and killed.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from atoll.engine.enclosure.views import open_view
from atoll.engine.network import daemon_client
from atoll.engine.project import levels
from atoll.engine.run import run_environment
from atoll.engine.run.channels import Channel
from atoll.engine.state.session import Session
from atoll.host import files, locks, procfs, view_client
from atoll.host.forkserver import await_ready
from atoll.host.process import pause, wait_until
from atoll.host.view_client import InsideFile
from atoll.keeper import wire
from atoll.keeper.log import LogEntry, follow_log, read_log
from atoll.keeper.private_input import PrivateInput
from atoll.keeper.status import RunStatus, load_status
from atoll.model.enclosure import Enclosure, KeeperSpec, Walls, encode
from atoll.model.errors import DriverError, IsolationError, StateError
from atoll.model.state import (
    CapsuleRecord,
    CapsuleState,
    Outcome,
    Process,
    Reason,
    Run,
    RunState,
)

if TYPE_CHECKING:
    from atoll.keeper.requests import StartRequest

LOG_LIMIT_BYTES = 64 << 20
GRACE_S = 5.0
_STARTED_S = 20.0
_ENDED_S = 60.0


class RunSpec(NamedTuple):
    """What was asked for."""

    argv: tuple[str, ...]
    background: bool = False
    tty: bool = False
    rows: int = 24
    cols: int = 80
    timeout_s: float | None = None
    stdin: bool = True
    write: tuple[str, ...] = ()
    """Patterns for what may be written in the workspace; none means all of it."""
    network: str | None = None
    """`none`, or a mode that is wider than the capsule's own while the run is active."""
    cwd: str = ""
    """Where it starts, in the workspace; an absolute path is one inside the capsule."""
    is_own: bool = False
    """Started by Atoll on its own account (`atoll.engine.run.internal_runs`)."""
    env: Mapping[str, str] = MappingProxyType({})
    """More variables, none of them secret: they are recorded with the run."""
    private_env: Mapping[str, str] = MappingProxyType({})
    """Variables for this run only; they are recorded nowhere."""
    redact: tuple[bytes, ...] = ()
    """Values that the recorded log must not contain; the values of `private_env` are added."""
    files: tuple[InsideFile, ...] = ()
    """Files that must be on the private tmpfs of the view when it starts."""

    def with_secrets(self, env: Mapping[str, str], redact: Sequence[bytes]) -> RunSpec:
        """Adds private variables, unless this run has its own of the same name."""
        return self._replace(
            private_env={**env, **self.private_env}, redact=(*self.redact, *redact)
        )

    def __repr__(self) -> str:
        """Without values: it may become part of a traceback."""
        return f"RunSpec(argv={self.argv!r}, private_env={sorted(self.private_env)!r})"


def start(
    session: Session,
    capsule: CapsuleRecord,
    inside: Enclosure,
    spec: RunSpec,
    *,
    states: Sequence[CapsuleState] = (CapsuleState.READY,),
    token: str | None = None,
) -> Run:
    """Starts a run. In the foreground it waits for its client before the command begins.

    Raises StateError when the capsule is not in one of `states`, DriverError when the keeper cannot
    be started; the run is then recorded as `lost` and nothing is left.
    """
    run_environment.require_variables(spec.private_env)
    walled = inside._replace(walls=_walls(inside, spec))
    token = token or new_token()
    if spec.timeout_s is None:
        spec = spec._replace(timeout_s=capsule.time_limit_s)
    lock = session.run_lock(token)
    # `gc` may read the file between its creation and its lock.
    lock.acquire(wait=True)
    try:
        run = session.store.lease_run(
            capsule,
            token=token,
            argv=spec.argv,
            background=spec.background,
            tty=spec.tty,
            network=spec.network,
            write=spec.write, is_own=spec.is_own,
            states=states,
        )  # fmt: skip
    except BaseException:
        lock.release(remove=True)
        raise
    try:
        session.reach("run.leased", run.label)
        files.make_private_directory(Path(run.directory))
        payload = keeper_spec(token, walled, spec, ports=_held_ports(capsule))
        session.reach("run.prepared", run.label)
        with _private_input(spec) as private:
            _launch(session, capsule, run, payload, lock, inside, private, spec.files)
        session.reach("run.launched", run.label)
        _note_running(session, run)
    finally:
        lock.release()
    return run._replace(state=RunState.RUNNING)


@contextmanager
def temporary(
    session: Session,
    capsule: CapsuleRecord,
    inside: Enclosure,
    spec: RunSpec,
    *,
    states: Sequence[CapsuleState] = (CapsuleState.READY,),
) -> Iterator[Run]:
    """A run of which nothing stays, also when an interrupt comes while it starts."""
    token = new_token()
    try:
        yield start(session, capsule, inside, spec, states=states, token=token)
    finally:
        run = session.store.find_run_by_token(token)
        if run is not None:
            forget(session, run)


def _held_ports(capsule: CapsuleRecord) -> tuple[int, ...]:
    """What is in a network of its own needs no port of the host's."""
    return () if levels.has_own_network(capsule.level) else tuple(capsule.ports.values())


def _note_running(session: Session, run: Run) -> None:
    try:
        session.store.set_running(run)
    except BaseException:
        # A full disk, or an interrupt: an unrecorded run must not continue.
        end_keeper(run.directory, grace_s=0)
        raise


def new_token() -> str:
    return os.urandom(8).hex()


def keeper_spec(
    token: str, inside: Enclosure, spec: RunSpec, *, ports: Sequence[int] = ()
) -> KeeperSpec:
    """The whole run, as its keeper reads it."""
    return KeeperSpec(
        run=token,
        argv=spec.argv,
        env={**inside.env, **spec.env, procfs.MARKER: token},
        cwd=os.path.normpath(os.path.join(inside.cwd, spec.cwd)),
        tty=spec.tty,
        rows=spec.rows,
        cols=spec.cols,
        foreground=not spec.background,
        stdin="client" if spec.stdin and (spec.tty or not spec.background) else "null",
        timeout_s=spec.timeout_s,
        grace_s=GRACE_S,
        log_limit_bytes=LOG_LIMIT_BYTES,
        hold_ports=tuple(ports),
        walls=inside.walls,
        limits=inside.limits,
    )


@contextmanager
def _private_input(spec: RunSpec) -> Iterator[tuple[int, ...]]:
    """The descriptor of the private variables of a run; none if it has none."""
    values = (os.fsencode(value) for value in spec.private_env.values())
    private = PrivateInput(spec.private_env, (*spec.redact, *values))
    if not private:
        yield ()
        return
    fd = private.send()
    try:
        yield (fd,)
    finally:
        os.close(fd)


def _walls(inside: Enclosure, spec: RunSpec) -> Walls | None:
    if not spec.write and spec.network is None:
        return inside.walls
    if inside.walls is None:
        what, option = (
            ("writing to other paths", "--write")
            if spec.write
            else ("the host's own network", "--network")
        )
        raise IsolationError(
            f"this level cannot prevent a run from {what}",
            hint=f"`{option}` needs level `sandbox`",
        )
    return inside.walls.narrowed_to(spec.write, alone=spec.network == "none")


def _launch(  # noqa: PLR0913, PLR0917 - a run, and what its keeper needs
    session: Session,
    capsule: CapsuleRecord,
    run: Run,
    payload: KeeperSpec,
    lock: locks.Lock,
    inside: Enclosure,
    private: tuple[int, ...],
    given: Sequence[InsideFile],
) -> None:
    """Starts a run's keeper, in the capsule's view where that has one."""
    if not inside.has_view:
        launch_keeper(session, run.directory, payload, lock, private)
        return
    _write_spec(run.directory, payload)

    def begin(ready: int) -> None:
        def is_asked() -> bool:
            # Each time: the view may be another one, which has none of them.
            if not view_client.put_files(inside.holder, given, subject=capsule.name):
                open_view(session, capsule)
                return False
            # Its ways out are open before it begins.
            is_held = not inside.has_egress or daemon_client.attach(session, capsule)
            request: StartRequest = {"start": run.directory, "owner": not inside.has_walls}
            fds = (lock.fd, ready, *private)
            answer = view_client.ask(inside.holder, request, fds) if is_held else None
            if answer is not None and "error" in answer[0]:
                raise DriverError(
                    f"the view of `{capsule.name}` did not start the run: {answer[0]['error']}",
                    hint=f"atoll stop {capsule.name}, then try again",
                )
            if answer is not None:
                # While a snapshot is taken nothing new starts.
                return not answer[0].get("held")
            # It has ended since it was opened: it was idle, or a snapshot was taken.
            open_view(session, capsule)
            return False

        if inside.has_egress and not view_client.has_socket(inside.holder):
            # Otherwise the daemon would be asked twice: it finds no holder before that.
            open_view(session, capsule)
        if not wait_until(is_asked, timeout_s=_STARTED_S):
            raise DriverError(f"the view of `{capsule.name}` has no holder", hint="try again")

    await_ready(begin, run.directory)
    if inside.has_walls and not inside.has_egress:
        daemon_client.notify(session, capsule)


def launch_keeper(
    session: Session,
    directory: str,
    payload: KeeperSpec,
    lock: locks.Lock,
    private: tuple[int, ...] = (),
) -> None:
    """Starts a keeper and waits until it listens. It holds the lock from its first moment."""
    _write_spec(directory, payload)
    session.forkserver.start_run(directory, lock.fd, private)


def _write_spec(directory: str, payload: KeeperSpec) -> None:
    # The keeper reads it once, when it is whole.
    Path(directory, "spec.json").write_bytes(json.dumps(encode(payload)).encode())


def end_keeper(directory: str, *, grace_s: float) -> None:
    """Has a keeper end its run, and waits until it has; fine when there is none."""
    try:
        sock = wire.connect(directory)
    except (FileNotFoundError, ConnectionRefusedError):
        return
    with sock:
        hello = wire.encode_json(
            wire.MessageKind.HELLO, {"role": "control", "rows": 24, "cols": 80}
        )
        sock.sendall(hello + wire.encode_json(wire.MessageKind.STOP, {"grace_s": grace_s}))
        while sock.recv(1 << 16):
            continue


def is_alive(session: Session, run: Run) -> bool:
    return locks.is_locked(session.run_lock(run.token).path)


def settle(session: Session, run: Run) -> Run:
    """The run as it is now; records its end if that was not recorded."""
    if run.state is RunState.ENDED:
        return run
    if is_alive(session, run):
        # Its starter may have been killed before it recorded the start.
        return run if _status(run) is None else run._replace(state=RunState.RUNNING)
    status = _status(run)
    if status is not None and status.state == "ended":
        outcome = _outcome(status)
    else:
        procfs.end_marked(run.token)
        outcome = Outcome(reason=Reason.LOST, message="the keeper was killed")
    ended_at = status.ended_at if status is not None and status.ended_at else time.time()
    session.store.set_ended(run, outcome, ended_at=ended_at)
    session.run_lock(run.token).path.unlink(missing_ok=True)
    ended = run._replace(state=RunState.ENDED, outcome=outcome, ended_at=ended_at)
    # The row is gone if the capsule was removed meanwhile.
    return session.store.find_run(run.id) or ended


def has_begun(run: Run) -> bool:
    """Whether its keeper ever said that it runs."""
    return _status(run) is not None


def _status(run: Run) -> RunStatus | None:
    try:
        return load_status(run.directory)
    except ValueError:
        # Damaged by a power failure: treated as missing.
        return None


def _outcome(status: RunStatus) -> Outcome:
    return Outcome(
        reason=Reason(status.reason or Reason.LOST),
        exit_code=status.exit_code,
        signal=status.signal,
        message=status.message,
        leftover=status.leftover,
        cpu_s=status.cpu_s,
        max_rss_bytes=status.max_rss_bytes,
    )


def wait(session: Session, run: Run, *, timeout_s: float | None = None) -> Run:
    """Waits for the end. Raises StateError on a timeout."""
    if timeout_s is None:
        locks.await_unlocked(session.run_lock(run.token).path)
    elif not wait_until(lambda: not is_alive(session, run), timeout_s=timeout_s):
        raise StateError(
            f"`{run.label}` is still running", hint=f"atoll logs {run.capsule_name} {run.number} -f"
        )
    return settle(session, run)


def stop(session: Session, run: Run, *, grace_s: float | None = None) -> Run:
    """Ends a run with everything that it started, daemons too. Fine when it has ended."""
    if not is_alive(session, run):
        return settle(session, run)
    channel = find_channel(session, run, role="control")
    if channel is not None:
        with channel:
            channel.stop(grace_s=grace_s)
            for _ in channel.exchange(timeout_s=_ENDED_S + (grace_s or GRACE_S)):
                continue
    return wait(session, run, timeout_s=_ENDED_S)


def forget(session: Session, run: Run) -> None:
    """Removes every trace of a run, which is ended first if it is active."""
    stop(session, run, grace_s=0)
    files.discard(Path(run.directory), home=session.home)
    session.store.forget_run(run)


def settled(session: Session, capsule: CapsuleRecord) -> list[Run]:
    """All runs of a capsule, the oldest first, as they are now."""
    return [settle(session, run) for run in session.store.runs(capsule)]


def living(session: Session, capsule: CapsuleRecord) -> list[Run]:
    return [run for run in settled(session, capsule) if run.state is not RunState.ENDED]


def alive(session: Session, capsule: CapsuleRecord) -> list[Run]:
    """As `living`, without recording the end of others: also on a full disk."""
    return [
        run
        for run in session.store.runs(capsule)
        if run.state is not RunState.ENDED and is_alive(session, run)
    ]


def stop_all(session: Session, capsule: CapsuleRecord) -> list[Run]:
    """Ends every run of a capsule."""
    unfinished = [r for r in session.store.runs(capsule) if r.state is not RunState.ENDED]
    return [stop(session, run) for run in unfinished]


def find_channel(
    session: Session, run: Run, *, role: str, rows: int | None = 24, cols: int | None = 80
) -> Channel | None:
    """Connects to an active run; None when it has ended. Without a size, its terminal keeps its
    own.
    """
    found: list[socket.socket] = []

    def connected() -> bool:
        try:
            found.append(wire.connect(run.directory))
        except (FileNotFoundError, ConnectionRefusedError):
            return not is_alive(session, run)
        return True

    if not wait_until(connected, timeout_s=_STARTED_S):
        raise DriverError(f"the keeper of `{run.label}` does not answer")
    if not found:
        return None
    size = {} if rows is None or cols is None else {"rows": rows, "cols": cols}
    return Channel(found[0], run, hello={"role": role, **size})


def entries(session: Session, run: Run, *, follow: bool = False) -> Iterator[LogEntry]:
    """The log of a run, oldest first; with `follow` until the run has ended."""
    if not follow:
        return read_log(run.directory)
    return follow_log(run.directory, lambda: not is_alive(session, run), pause)


def processes(session: Session, run: Run) -> list[Process]:
    """The live processes of a run, without its keeper."""
    status = _status(run)
    if not is_alive(session, run) or status is None or status.keeper is None:
        return []
    table = procfs.processes()
    keeper = status.keeper[0]
    return [process for process in procfs.family([keeper], table) if process.pid != keeper]
