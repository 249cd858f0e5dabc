"""The runs that one process watches over: it forks their minders, and sweeps up after them.

watcher (subreaper) ─┬─ minder (subreaper) ── a run's tree
                     └─ minder (subreaper) ── another run's tree

If a minder dies, its orphans come to the watcher: whatever is below that and below no living
minder has lost its own, and is killed. Then the outcome `lost` is written. If the watcher dies,
the kernel tells the minders, which do the same. Both hold the lock on the run until their last
moment, or until a minder that `kept` another lock has nothing left to do; nothing else does.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import time

from atoll.keeper import asking, calls, tree, wire
from atoll.keeper.ending import Ending, survivors_message
from atoll.keeper.forking import leave_everything, run_process
from atoll.keeper.groups import Group
from atoll.keeper.limits import find_limits
from atoll.keeper.looks import Looks
from atoll.keeper.loop import HANDLED_SIGNALS, Loop
from atoll.keeper.minder import Minder
from atoll.keeper.spec import load_spec
from atoll.keeper.status import Status, find_error, load_status, record_error, write_status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from atoll.keeper.peers import Origin


class _Ward:
    __slots__ = ("lock_fd", "run_dir", "wait_status")

    def __init__(self, run_dir: str, lock_fd: int) -> None:
        self.run_dir = run_dir
        self.lock_fd = lock_fd
        self.wait_status = 0


class _Novice:
    """A minder that has no run yet; it ends when `socket` is closed."""

    __slots__ = ("pid", "socket")

    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid = pid
        self.socket = sock


class Wards:
    """Truthy while there is a run, or something left of one. `kept` is for every minder, too, and
    `group` (`groups.py`) and `given` (`load_spec`) for every run. `place` is where minders without
    a run tell their errors, `origin` says who may talk to them, `lookout` is the directory of one
    that watches their runs while those are idle (`lookout.py`).
    """

    def __init__(
        self,
        place: str,
        origin: Origin,
        kept: Iterable[int] = (),
        group: Mapping[str, str] | None = None,
        given: Mapping[str, object] | None = None,
        lookout: str | None = None,
    ) -> None:
        calls.become_subreaper()
        self._place = place
        self._origin = origin
        self._given = given
        self._kept = tuple(kept)
        self._group = group or {}
        self._lookout = lookout
        self._novice: _Novice | None = None
        self._minders: dict[int, _Ward] = {}
        self._lost: list[_Ward] = []
        self._sweep: Ending | None = None
        self._has_pending_exits = False

    def __len__(self) -> int:
        return len(self._minders) + len(self._lost)

    @property
    def waiting(self) -> int | None:
        """The minder that has no run yet."""
        return None if self._novice is None else self._novice.pid

    def start(
        self,
        run_dir: str,
        lock_fd: int,
        ready_fd: int,
        *,
        is_owners: bool = False,
        starter: int | None = None,
    ) -> None:
        """Start the run whose spec is in `run_dir`; the descriptors stay the caller's.

        One that `is_owners` has no walls. One in the foreground ends if `starter` dies before it
        has become its client.

        `ready_fd` gets one JSON line as soon as clients can connect: `{"pid": minder}`, or
        `{"error": message}`.
        """
        novice, self._novice = self._novice or self._fork(), None
        with novice.socket:
            request: dict[str, object] = {"start": run_dir, "owner": is_owners}
            request["starter"] = starter
            asking.send(novice.socket, request, (lock_fd, ready_fd))
        self._minders[novice.pid] = _Ward(run_dir, os.dup(lock_fd))

    def prepare(self) -> None:
        """Have a minder for the next run: its birth takes as long as all that it does later."""
        if self._novice is None and not self._lost:
            try:
                self._novice = self._fork()
            except OSError:  # no process, or no descriptor, for what can be done later
                return

    def dismiss(self) -> None:
        """Let the minder go that has no run."""
        novice, self._novice = self._novice, None
        if novice is not None:
            novice.socket.close()
            os.kill(novice.pid, signal.SIGKILL)
            os.waitpid(novice.pid, 0)

    def _fork(self) -> _Novice:
        watcher = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Our handlers must not run in the child.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                run_process(self._place, lambda: self._serve(theirs, watcher))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
        return _Novice(pid, ours)

    def pass_on(self, number: int) -> None:
        for minder in self._minders:
            os.kill(minder, number)

    def wait_s(self) -> float | None:
        """After how long `tend` has something to do; None: when a child has changed."""
        if self._has_pending_exits:
            return 0.0
        return None if self._sweep is None else max(0.0, self._sweep.deadline - time.monotonic())

    def tend(self) -> None:
        """Let go of the runs that are over; go on with the end of those whose minder has died."""
        exits, has_children = tree.reap()
        self._has_pending_exits = tree.is_cut_short(exits)
        for child in exits:
            if self._novice is not None and child.pid == self._novice.pid:
                self._novice.socket.close()
                self._novice = None
            ward = self._minders.pop(child.pid, None)
            if ward is not None and child.wait_status == 0:
                os.close(ward.lock_fd)
            elif ward is not None:
                ward.wait_status = child.wait_status
                self._lost.append(ward)
        if self._lost:
            self.dismiss()  # it would look like one of their orphans
            self._press(has_children=has_children)

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
        for ward in lost:
            wire.remove(ward.run_dir)
            _record_loss(ward, survivors)
            os.close(ward.lock_fd)

    def _thaw(self) -> None:
        """A minder that died may have left its processes frozen, and those could not be killed."""
        try:
            Group(dict(self._group)).thaw()
        except OSError:  # the group is gone
            return

    def _serve(self, sock: socket.socket, watcher: int) -> int:
        """The life of a minder."""
        leave_everything({sock.fileno(), *self._kept})
        loop = Loop()
        loop.catch_signals()
        calls.become_subreaper()
        calls.name_process("atoll-keeper")
        if not calls.die_with_parent(signal.SIGTERM, watcher):
            loop.stop_is_asked = True
        try:
            with sock:
                request, (lock, news) = asking.receive(sock)
        except (EOFError, ConnectionResetError):
            return 0
        run_dir, is_owners = str(request["start"]), request.get("owner") is True
        starter = request.get("starter")

        def load() -> Minder:
            spec = load_spec(run_dir, self._given, is_owners=is_owners)
            limits = find_limits(spec.limits, self._group)
            looks = None if limits is None else Looks(limits, loop, self._lookout)
            minder = Minder(run_dir, spec, loop, watcher, self._origin, looks)
            if isinstance(starter, int):
                minder.watch_starter(starter)
            return minder

        run_process(run_dir, lambda: self._mind(load, watcher, lock, news))
        return 0

    def _mind(self, load: Callable[[], Minder], watcher: int, lock: int, news: int) -> int:
        try:
            minder = load()
        except Exception as error:
            _tell(news, {"error": str(error)})
            raise
        _tell(news, {"pid": os.getpid(), "watcher": watcher})
        if not minder.serve():
            return 1
        if self._kept:
            # All is over and written down. Who has to know that we are gone, too, waits for the
            # view's own lock; who waits for the run need not wait for our burial.
            fcntl.flock(lock, fcntl.LOCK_UN)
        return 0

    def _has_orphans(self) -> bool:
        # All of them were stopped before they were killed: none can have forked since.
        return not self._minders or bool(
            tree.processes_under(os.getpid(), spared=self._minders.keys())
        )


def _tell(news: int, value: dict[str, object]) -> None:
    try:
        os.write(news, json.dumps(value).encode("ascii") + b"\n")
    except BrokenPipeError:  # the starter was killed; the run does not need it
        return
    finally:
        os.close(news)


def _record_loss(ward: _Ward, survivors: str | None) -> None:
    try:
        status = load_status(ward.run_dir)
    except (OSError, ValueError):
        status = None
    if status is None:
        process = tree.find_process(os.getpid())
        status = Status(keeper=None, guard=None if process is None else process.identity)
    if status.state == "ended":  # the minder got as far as that
        return
    status.state = "ended"
    status.reason = "lost"
    status.ended_at = time.time()
    if os.WIFSIGNALED(ward.wait_status):
        status.note(f"the keeper was killed by signal {os.WTERMSIG(ward.wait_status)}")
    else:
        status.note(f"the keeper failed: {find_error(ward.run_dir) or 'nothing is known'}")
    if survivors is not None:
        status.note(survivors)
    try:
        write_status(ward.run_dir, status)
    except OSError as error:  # then the free lock has to tell it
        record_error(ward.run_dir, f"the outcome could not be written: {error}\n")
