"""The supervisor of runs: forks their minders, and cleans up after them.

supervisor (subreaper) ─┬─ minder (subreaper) ── a run's tree
                        └─ minder (subreaper) ── another run's tree

If a minder dies, the supervisor inherits its orphans: every process below it that is below no live
minder is killed. Then the outcome `lost` is written. If the supervisor dies, the kernel signals the
minders, which do the same. Both hold the lock on the run until their last moment, or until a minder
that `kept` another lock has nothing left to do; nothing else does.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import time

from atoll.keeper import calls, private_input, process_tree, requests, wire
from atoll.keeper.child_process import leave_everything, run_process
from atoll.keeper.groups import Group
from atoll.keeper.limit_checks import LimitChecks
from atoll.keeper.limits import RunLimits
from atoll.keeper.loop import HANDLED_SIGNALS, STOP_SIGNALS, Loop
from atoll.keeper.minder import Minder
from atoll.keeper.peer_check import Origin
from atoll.keeper.spec import RunDefaults, load_spec
from atoll.keeper.status import RunStatus, find_error, load_status, record_error, write_status
from atoll.keeper.termination import Ending, survivors_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class _SupervisedRun:
    __slots__ = ("lock_fd", "run_dir", "wait_status")

    def __init__(self, run_dir: str, lock_fd: int) -> None:
        self.run_dir = run_dir
        self.lock_fd = lock_fd
        self.wait_status = 0


class _SpareMinder:
    """A minder that has no run yet; it ends when `socket` is closed."""

    __slots__ = ("pid", "socket")

    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid = pid
        self.socket = sock


class Supervisor:
    """Truthy while there is a run, or something left of one.

    Every minder inherits the descriptors `kept`; `group` (`groups.py`) and `imposed` (`load_spec`)
    apply to every run. Minders without a run write errors to `place`. `origin` decides which
    processes may connect. `monitor_dir` is the directory of the idle monitor (`idle_monitor.py`).
    """

    def __init__(
        self,
        place: str,
        origin: Origin,
        kept: Iterable[int] = (),
        group: Mapping[str, str] | None = None,
        imposed: RunDefaults | None = None,
        monitor_dir: str | None = None,
    ) -> None:
        calls.become_subreaper()
        self._place = place
        self._origin = origin
        self._imposed = imposed
        self._kept = tuple(kept)
        self._group = group or {}
        self._monitor_dir = monitor_dir
        self._spare: _SpareMinder | None = None
        self._minders: dict[int, _SupervisedRun] = {}
        self._lost: list[_SupervisedRun] = []
        self._sweep: Ending | None = None
        self._has_pending_exits = False

    def __len__(self) -> int:
        return len(self._minders) + len(self._lost)

    @property
    def waiting(self) -> int | None:
        """The minder that has no run yet."""
        return None if self._spare is None else self._spare.pid

    def start(
        self,
        run_dir: str,
        lock_fd: int,
        ready_fd: int,
        *,
        is_owners: bool = False,
        starter: int | None = None,
        private_fd: int | None = None,
    ) -> None:
        """Start the run whose spec is in `run_dir`; the descriptors stay the caller's.

        One that `is_owners` has no walls. One in the foreground ends if `starter` dies before it
        has become its client. `private_fd` has its private variables (`private_input.py`).

        `ready_fd` gets one JSON line as soon as clients can connect: `{"pid": minder}`, or
        `{"error": message}`.
        """
        spare, self._spare = self._spare or self._fork(), None
        with spare.socket:
            request: requests.StartRequest = {
                "start": run_dir,
                "owner": is_owners,
                "starter": starter,
            }
            fds = (lock_fd, ready_fd, *(() if private_fd is None else (private_fd,)))
            requests.send(spare.socket, request, fds)
        self._minders[spare.pid] = _SupervisedRun(run_dir, os.dup(lock_fd))

    def prepare(self) -> None:
        """Fork a spare minder for the next run: the fork is half of the start-up time."""
        if self._spare is None and not self._lost:
            try:
                self._spare = self._fork()
            except OSError:  # no process, or no descriptor, for what can be done later
                return

    def dismiss(self) -> None:
        """Let the minder go that has no run."""
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.socket.close()
            os.kill(spare.pid, signal.SIGKILL)
            os.waitpid(spare.pid, 0)

    def _fork(self) -> _SpareMinder:
        supervisor_pid = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Our handlers must not run in the child.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                run_process(self._place, lambda: self._serve(theirs, supervisor_pid))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
        return _SpareMinder(pid, ours)

    def pass_on(self, number: int) -> None:
        for minder in self._minders:
            os.kill(minder, number)

    def wait_s(self) -> float | None:
        """After how long `tend` has something to do; None: when a child has changed."""
        if self._has_pending_exits:
            return 0.0
        return None if self._sweep is None else max(0.0, self._sweep.deadline - time.monotonic())

    def tend(self) -> list[process_tree.Exit]:
        """Forget the runs that are over; continue ending those whose minder has died.

        Returns the children that have ended.
        """
        exits, has_children = process_tree.reap()
        self._has_pending_exits = process_tree.is_cut_short(exits)
        for child in exits:
            if self._spare is not None and child.pid == self._spare.pid:
                self._spare.socket.close()
                self._spare = None
            supervised = self._minders.pop(child.pid, None)
            if supervised is not None and child.wait_status == 0:
                os.close(supervised.lock_fd)
            elif supervised is not None:
                supervised.wait_status = child.wait_status
                self._lost.append(supervised)
        if self._lost:
            self.dismiss()  # it would look like one of their orphans
            self._press(has_children=has_children)
        return exits

    def _press(self, *, has_children: bool) -> None:
        """Kill what the dead minders have left, and write down what became of their runs."""
        now = time.monotonic()
        if self._sweep is None:
            self._thaw()
            self._sweep = Ending(os.getpid(), [], now, spared=self._minders.keys())
        survivors = None
        if has_children and self._has_orphans():
            self._sweep.advance(now, main_is_gone=True)
            if not self._sweep.is_given_up:
                return
            survivors = survivors_message(os.getpid(), spared=self._minders.keys())
        self._sweep = None
        lost, self._lost = self._lost, []
        for supervised in lost:
            wire.remove(supervised.run_dir)
            _record_loss(supervised, survivors)
            os.close(supervised.lock_fd)

    def _thaw(self) -> None:
        """A minder that died may have left its processes frozen, and those could not be killed."""
        try:
            Group(dict(self._group)).thaw()
        except OSError:  # the group is gone
            return

    def _serve(self, sock: socket.socket, supervisor_pid: int) -> int:
        """The life of a minder."""
        leave_everything({sock.fileno(), *self._kept})
        loop = Loop()
        loop.catch_signals()
        calls.become_subreaper()
        calls.name_process("atoll-keeper")
        if not calls.die_with_parent(signal.SIGTERM, supervisor_pid):
            loop.stop_is_asked = True
        try:
            with sock:
                request, (lock, news, *private) = requests.receive(sock)
        except (EOFError, ConnectionResetError):
            return 0
        run_dir, is_owners = str(request["start"]), request.get("owner") is True
        starter = request.get("starter")

        def load() -> Minder:
            given = private_input.receive(private[0]) if private else None
            spec = load_spec(run_dir, self._imposed, is_owners=is_owners)
            if given is not None:
                spec = spec._replace(env={**spec.env, **given.env})
            redact = () if given is None else given.redact
            limits = None if spec.limits is None else RunLimits(spec.limits, self._group)
            checks = None if limits is None else LimitChecks(limits, loop, self._monitor_dir)
            minder = Minder(
                run_dir, spec, loop, supervisor_pid, self._origin, checks, redact=redact
            )
            if isinstance(starter, int):
                minder.watch_starter(starter)
            return minder

        run_process(run_dir, lambda: self._mind(load, supervisor_pid, lock, news))
        return 0

    def _mind(self, load: Callable[[], Minder], supervisor_pid: int, lock: int, news: int) -> int:
        try:
            minder = load()
        except Exception as error:
            _report(news, {"error": str(error)})
            raise
        _report(news, {"pid": os.getpid(), "watcher": supervisor_pid})
        if not minder.serve():
            return 1
        if self._kept:
            # The run is over and recorded. Operations that need this process to exit wait for the
            # view's own lock; a client that waits for the run need not wait for the exit.
            fcntl.flock(lock, fcntl.LOCK_UN)
        return 0

    def _has_orphans(self) -> bool:
        # All of them were stopped before they were killed: none can have forked since.
        return not self._minders or bool(
            process_tree.processes_under(os.getpid(), spared=self._minders.keys())
        )


def _report(news: int, value: dict[str, object]) -> None:
    try:
        os.write(news, json.dumps(value).encode("ascii") + b"\n")
    except BrokenPipeError:  # the starter was killed; the run does not need it
        return
    finally:
        os.close(news)


def _record_loss(supervised: _SupervisedRun, survivors: str | None) -> None:
    try:
        status = load_status(supervised.run_dir)
    except (OSError, ValueError):
        status = None
    if status is None:
        process = process_tree.find_process(os.getpid())
        status = RunStatus(keeper=None, guard=None if process is None else process.identity)
    if status.state == "ended":  # the minder got as far as that
        return
    status.state = "ended"
    status.reason = "lost"
    status.ended_at = time.time()
    if os.WIFSIGNALED(supervised.wait_status):
        status.note(f"the keeper was killed by signal {os.WTERMSIG(supervised.wait_status)}")
    else:
        status.note(f"the keeper failed: {find_error(supervised.run_dir) or 'unknown error'}")
    if survivors is not None:
        status.note(survivors)
    try:
        write_status(supervised.run_dir, status)
    except OSError as error:  # the free lock shows the end
        record_error(supervised.run_dir, f"the outcome could not be written: {error}\n")


def fork_guard(
    run_dir: str,
    lock_fd: int,
    ready_fd: int,
    starter: int | None = None,
    private_fd: int | None = None,
) -> int:
    """Start a supervisor of a single run, for levels without a holder; returns its process id."""
    pid = os.fork()
    if pid == 0:
        run_process(run_dir, lambda: _guard(run_dir, lock_fd, ready_fd, starter, private_fd))
    return pid


def _guard(
    run_dir: str, lock_fd: int, ready_fd: int, starter: int | None, private_fd: int | None
) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    kept = {lock_fd, ready_fd, *(() if private_fd is None else (private_fd,))}
    leave_everything(kept)
    calls.name_process("atoll-guard")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would keep exit codes from us
    supervisor = Supervisor(run_dir, Origin(is_strict=False))
    supervisor.start(run_dir, lock_fd, ready_fd, starter=starter, private_fd=private_fd)
    os.close(ready_fd)
    if private_fd is not None:
        os.close(private_fd)
    while supervisor:
        number = _next_signal(supervisor.wait_s())
        if number in STOP_SIGNALS:
            supervisor.pass_on(number)
        supervisor.tend()
    return 0


def _next_signal(timeout_s: float | None) -> int:
    """0 on a timeout."""
    if timeout_s is None:
        return signal.sigwait(HANDLED_SIGNALS)
    found = signal.sigtimedwait(HANDLED_SIGNALS, timeout_s)
    return 0 if found is None else found.si_signo
