"""The minder: starts the run, serves its clients, ends its process tree, reports the outcome.

It goes through the phases of `Phase` in order and never back. Ending the tree comes before
everything else; the outcome is written before any client is notified.
"""

from __future__ import annotations

import enum
import errno
import os
import signal
import time

from atoll.keeper import process_tree, wire
from atoll.keeper.child_process import ServedDirectory
from atoll.keeper.clients import Client, Clients, Starter
from atoll.keeper.freezer import RunFreezer
from atoll.keeper.log import LogWriter, read_log
from atoll.keeper.reserved_ports import hold_ports
from atoll.keeper.run import Command
from atoll.keeper.start_error import NO_WALLS
from atoll.keeper.status import RunStatus, reserve_status, write_status
from atoll.keeper.termination import Ending, survivors_message
from atoll.keeper.wire import ENDING, NOTHING, FreezeReply, MessageKind, WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from atoll.keeper.limit_checks import LimitChecks
    from atoll.keeper.limits import RunLimits
    from atoll.keeper.loop import Loop
    from atoll.keeper.peer_check import Origin
    from atoll.model.enclosure import KeeperSpec

_OWN_ENDS = ("exited", "signalled", "not-started", "no-walls")
HELLO_S = 30.0
"""How long a foreground run waits for its client."""
NATURAL_GRACE_S = 2.0
"""The grace period of remaining processes when the command has exited."""
_KERNEL_S = 0.1
"""How long the kernel may take to end what is left in a sandbox: checking costs more."""
HANGUP_S = 1.0
DRAIN_S = 10.0
"""How long clients may take to read the remaining output when the run has ended."""
PATIENCE_S = 600.0
"""How long a foreground client may pause (a pager!) after a run that was not stopped on request."""
_RETRY_S = 0.5
_PLACE_S = 30.0
"""The interval between checks that the run's directory still exists."""
_LONGEST_WAIT_S = 3600.0  # the kernel counts milliseconds in 31 bits


class Phase(enum.IntEnum):
    WAITING = 1  # for the foreground client
    RUNNING = 2
    ENDING = 3
    DRAINING = 4  # the tree is gone; clients take what is left


class Minder:
    """The only state machine of the keeper."""

    def __init__(  # noqa: PLR0913 - a run, and what surrounds it
        self,
        run_dir: str,
        spec: KeeperSpec,
        loop: Loop,
        supervisor_pid: int,
        origin: Origin,
        checks: LimitChecks | None = None,
        *,
        redact: tuple[bytes, ...] = (),
    ) -> None:
        self._run_dir = run_dir
        self._place = ServedDirectory(run_dir)
        self._place_at = time.monotonic() + _PLACE_S
        self._starter: Starter | None = None
        self._checks = checks
        self._limits = limits = None if checks is None else checks.limits
        self._spec = spec
        self._loop = loop
        self._supervisor_pid = supervisor_pid
        self._phase = Phase.WAITING
        self._deadline = time.monotonic() + HELLO_S
        self._ending: Ending | None = None
        self._freezer = RunFreezer(None if limits is None else limits.group)
        self._postponed: tuple[str, list[tuple[int, float]]] | None = None
        self._has_children = False
        self._is_recorded = False
        self._status = RunStatus(keeper=_identity(os.getpid()), guard=_identity(supervisor_pid))
        self._log = LogWriter(run_dir, spec.log_limit_bytes, time.time(), redact)
        self._run = Command(spec, loop, self._emit, limits)
        listener = wire.listen(run_dir)
        self._clients = Clients(
            loop, listener, self._on_frame, self._on_gone, origin, is_terminal=spec.tty
        )
        self._placeholders, self._status.taken_ports = hold_ports(spec.hold_ports)

    def watch_starter(self, pid: int) -> None:
        """For a run in the foreground: `pid` is going to be its client, unless it dies before."""
        if self._spec.foreground:
            self._starter = Starter(pid, self._loop)

    def serve(self) -> bool:
        """Serves until the run is over; False if the outcome could not be written."""
        reserve_status(self._run_dir)  # before the command can fill the disk
        if not self._spec.foreground:
            self._start()
        is_over = False
        while not is_over:
            self._pace()
            self._loop.turn(self._wait_s())
            self._observe()
            is_over = self._advance(time.monotonic())
        self._clients.close()
        wire.remove(self._run_dir)
        return self._is_recorded

    def _emit(self, stream: str, data: bytes) -> None:
        self._log.write(stream, data, time.time())
        self._clients.output(MessageKind.OUT if stream == "out" else MessageKind.ERR, data)
        if self._limits is not None:
            reason = self._limits.count_output(len(data), time.monotonic())
            if reason is not None:
                self._end(reason, [(signal.SIGTERM, self._spec.grace_s)])

    def _start(self) -> None:
        self._phase = Phase.RUNNING
        if self._checks is not None:
            self._checks.begin(time.monotonic())
        self._run.start()
        if self._checks is not None:
            self._checks.members.shell = self._shell
        self._loop.children_changed = True
        self._status.pid = self._run.pid
        self._status.started_at = time.time()
        limit_s = self._spec.timeout_s
        self._deadline = float("inf") if limit_s is None else time.monotonic() + limit_s
        try:
            write_status(self._run_dir, self._status)
        except OSError as error:
            self._status.note(f"cannot record the start: {error.strerror}")

    @property
    def _shell(self) -> int | None:
        """The process around the walls."""
        return self._run.pid if self._spec.walls is not None else None

    @property
    def _check_due_at(self) -> float:
        return float("inf") if self._checks is None else self._checks.due_at

    def _pace(self) -> None:
        """Let the slow side of every stream set the speed."""
        if self._clients.is_crowded:
            self._run.pause(is_paused=True)
        elif self._clients.is_roomy:
            self._run.pause(is_paused=False)
        self._clients.hold_stdin(is_full=self._run.is_stdin_full)

    def _wait_s(self) -> float | None:
        if self._phase is Phase.DRAINING or self._freezer.has_clients:
            return _RETRY_S
        if self._loop.children_changed or (self._phase is Phase.RUNNING and self._run.is_over):
            return 0.0
        deadline = self._deadline if self._ending is None else self._ending.deadline
        if self._phase is Phase.RUNNING:
            deadline = min(deadline, self._check_due_at, self._run.input_due_at)
        if self._ending is None:
            deadline = min(deadline, self._place_at)
        if deadline == float("inf"):
            return None
        return min(max(0.0, deadline - time.monotonic()), _LONGEST_WAIT_S)

    def _observe(self) -> None:
        if self._loop.children_changed:
            self._reap()
        self._run.feed_terminal()
        self._check_place(time.monotonic())
        if self._loop.stop_is_asked:
            self._loop.stop_is_asked = False
            if os.getppid() != self._supervisor_pid:
                self._status.note("the keeper's guard was killed")
                self._freezer.end()
                self._end("lost", [(signal.SIGTERM, min(self._spec.grace_s, NATURAL_GRACE_S))])
            else:
                self._stop(self._spec.grace_s)

    def _check_place(self, now: float) -> None:
        """End the run if its directory was removed: no client can find or stop it any more."""
        if now >= self._place_at:
            self._place_at = now + _PLACE_S
            if self._place.is_lost():
                self._freezer.end()
                self._end("lost", [(signal.SIGTERM, min(self._spec.grace_s, NATURAL_GRACE_S))])

    def _reap(self) -> list[int]:
        self._loop.children_changed = False
        stops: list[process_tree.Stop] = []
        exits, self._has_children = process_tree.reap(stops)
        if process_tree.is_cut_short(exits, stops):
            self._loop.children_changed = True
        if self._ending is None or not self._ending.is_tracing:
            self._freezer.note_stops(stops)
        for child in exits:
            self._status.cpu_s += child.cpu_s
            self._status.max_rss_bytes = max(self._status.max_rss_bytes, child.max_rss_bytes)
            if child.pid == self._run.pid and self._run.wait_status is None:
                self._run.main_exited(child.wait_status)
        return [child.pid for child in exits]

    def _advance(self, now: float) -> bool:
        """Continue with the next phase if it is time; True when the run is over."""
        if self._freezer.has_clients:
            return False
        if self._phase is Phase.WAITING and (
            now >= self._deadline or (self._starter is not None and self._starter.is_gone)
        ):
            self._finish("hangup")
        if self._phase is Phase.RUNNING:
            grace_s = self._spec.grace_s
            if self._run.is_over:
                self._end("exited", [(signal.SIGTERM, min(grace_s, NATURAL_GRACE_S))])
            elif now >= self._deadline:
                self._end("timeout", [(signal.SIGTERM, grace_s)])
            elif self._checks is not None and now >= self._checks.due_at:
                reason = self._checks.check(now)
                if reason is not None:
                    # What eats the machine up gets no time to think.
                    self._end(reason, [])
        if self._phase is Phase.ENDING:
            self._press(now)
        return self._phase is Phase.DRAINING and self._is_drained(now)

    def _end(self, reason: str, steps: list[tuple[int, float]]) -> None:
        """Start ending the tree. The first reason is recorded."""
        if self._freezer.has_clients:
            self._postponed = self._postponed or (reason, steps)
        elif self._phase is Phase.WAITING:
            self._finish(reason)
        elif self._phase is Phase.RUNNING:
            self._freezer.end()  # what is paused could not react
            self._reap()  # it may have ended by itself just before someone asked for it
            self._phase = Phase.ENDING
            if self._checks is not None:
                self._checks.end()
            self._status.reason = "exited" if self._run.is_over else reason
            shell = self._shell
            rest_s = _KERNEL_S if shell is not None and self._run.is_over else 0.0
            self._ending = Ending(
                os.getpid(), steps, time.monotonic() + rest_s, shell=shell, reap=self._reap
            )

    def _stop(self, grace_s: float) -> None:
        now = time.monotonic()
        if self._phase is Phase.DRAINING:
            self._deadline = now
            for client in self._clients.pending():
                self._clients.drop(client)
        elif self._ending is not None:
            self._ending.hasten(now + grace_s)
        else:
            self._end("stopped", [(signal.SIGTERM, grace_s)])

    def _press(self, now: float) -> None:
        if self._ending is None or not self._has_children:
            self._finish(self._status.reason or "exited")
            return
        # In a sandbox the kernel ends what is left at once: it does not count as a leftover.
        self._ending.advance(now, main_is_gone=self._run.is_over and self._spec.walls is None)
        self._status.leftover = self._ending.leftover
        if self._ending.is_given_up:
            self._status.note(survivors_message(os.getpid()))
            self._finish(self._status.reason or "exited")

    def _finish(self, reason: str) -> None:
        """The tree is gone: take the last output, record the outcome, notify the clients."""
        self._run.drain()
        self._log.close(time.time())
        status = self._status
        status.state = "ended"
        status.reason = reason
        status.ended_at = time.time()
        _judge(status, self._run, self._limits, self._run_dir)
        if self._log.error is not None:
            status.note(self._log.error)
        self._phase = Phase.DRAINING
        self._record()
        self._clients.announce(wire.encode_json(MessageKind.ENDED, status.render()))
        self._deadline = time.monotonic() + DRAIN_S

    def _record(self) -> None:
        try:
            write_status(self._run_dir, self._status, is_durable=not self._spec.foreground)
        except OSError as error:
            if error.errno == errno.ENOENT:  # the run directory is gone
                self._is_recorded = True
            return
        self._is_recorded = True

    def _is_drained(self, now: float) -> bool:
        """Whether everyone has got everything, or has had time enough."""
        latest = self._deadline
        if not self._is_recorded and now < latest:
            self._record()
        for client in self._clients.pending():
            limit = latest
            if client is self._clients.foreground and self._status.reason in _OWN_ENDS:
                limit = client.progress + PATIENCE_S
            if now >= limit:
                self._clients.drop(client)
        return not self._clients.pending() and (self._is_recorded or now >= latest)

    def _on_gone(self, client: Client) -> None:
        if self._freezer.leave(client):
            self._go_on()
        if client.role == "foreground":
            asking_s = min(HANGUP_S, self._spec.grace_s / 2)
            steps: list[tuple[int, float]] = [
                (signal.SIGHUP, asking_s),
                (signal.SIGTERM, self._spec.grace_s - asking_s),
            ]
            self._end("hangup", steps)

    def _on_frame(self, client: Client, kind: MessageKind, payload: bytes) -> None:
        if (client.role is None) != (kind is MessageKind.HELLO):
            raise WireError("the first frame must be a hello, sent once")
        if kind is MessageKind.STDIN or kind is MessageKind.STDIN_EOF:
            self._feed(client, kind, payload)
            return
        raw = wire.parse_json(payload)
        if kind is MessageKind.HELLO:
            self._welcome(client, raw)
        elif kind is MessageKind.RESIZE:
            self._run.resize(wire.whole_number(raw, "rows"), wire.whole_number(raw, "cols"))
        elif kind is MessageKind.SIGNAL:
            number = wire.whole_number(raw, "signal")
            if number not in signal.valid_signals():
                raise WireError(f"there is no signal {number}")
            self._run.send_signal(number)
        elif kind is MessageKind.HOLD or kind is MessageKind.RESUME:
            answer = self._hold_for(client, raw) if kind is MessageKind.HOLD else self._resume()
            self._clients.send(client, wire.encode_json(MessageKind.HELD, answer.render()))
        elif kind is MessageKind.STOP:
            self._stop(wire.seconds(raw, "grace_s", self._spec.grace_s))
        else:
            raise WireError("clients cannot send this kind of frame")

    def _welcome(self, client: Client, raw: dict[str, object]) -> None:
        role = raw.get("role")
        if role not in ("foreground", "attach", "control"):
            raise WireError("no such role")
        if role == "foreground" and self._phase is not Phase.WAITING:
            raise WireError("this run does not accept a foreground client")
        if role != "control" and "rows" in raw and "cols" in raw:
            self._run.resize(wire.whole_number(raw, "rows"), wire.whole_number(raw, "cols"))
        self._clients.admit(client, str(role))
        if role == "foreground" and self._starter is not None:
            self._starter.forget()
        if role == "foreground" and not self._freezer.is_active:
            self._start()
        if self._phase is Phase.DRAINING:
            self._clients.send(client, wire.encode_json(MessageKind.ENDED, self._status.render()))

    def _hold_for(self, client: Client, raw: dict[str, object]) -> FreezeReply:
        if self._phase is Phase.ENDING:
            return FreezeReply(ENDING, "the run is being ended")
        if self._phase is Phase.DRAINING:
            return FreezeReply(NOTHING)
        answer = self._freezer.acquire(None if raw.get("stays") is True else client)
        return FreezeReply(NOTHING) if self._phase is Phase.WAITING else answer

    def _resume(self) -> FreezeReply:
        if self._freezer.resume():
            self._go_on()
        return FreezeReply(NOTHING, processes=len(process_tree.descendants(os.getpid())))

    def _go_on(self) -> None:
        """What had to wait while the run was held."""
        postponed, self._postponed = self._postponed, None
        if postponed is not None:
            self._end(*postponed)
        elif self._phase is Phase.WAITING and self._clients.foreground is not None:
            self._start()

    def _feed(self, client: Client, kind: MessageKind, data: bytes) -> None:
        is_shared = self._spec.tty or not self._spec.foreground
        if client.role != "foreground" and not (client.role == "attach" and is_shared):
            raise WireError("this client may not write to the command")
        if kind is MessageKind.STDIN:
            self._run.feed(data)
        else:
            self._run.feed_end()


def _identity(pid: int) -> tuple[int, int] | None:
    process = process_tree.find_process(pid)
    return None if process is None else process.identity


def _judge(status: RunStatus, run: Command, limits: RunLimits | None, run_dir: str) -> None:
    """Write the outcome of the main process into the status."""
    wait_status = run.wait_status
    failure, launcher = run.failure, run.launcher
    if failure is not None and not failure.message and launcher is not None:
        # A command that was ended on purpose may not have reached its walls.
        was_ended = status.reason != "exited"
        failure = None if was_ended else launcher.find_cause(_read_output(run_dir))
    if failure is not None:
        status.exit_code = failure.exit_code
        status.note(failure.message)
        if status.reason == "exited":
            status.reason = "no-walls" if failure.exit_code == NO_WALLS else "not-started"
    elif wait_status is not None and os.WIFSIGNALED(wait_status):
        status.signal = os.WTERMSIG(wait_status)
        if status.reason == "exited":
            status.reason = "signalled"
    elif wait_status is not None:
        status.exit_code = os.WEXITSTATUS(wait_status)
    if limits is not None and status.reason in _OWN_ENDS:
        status.reason = limits.judge(status.exit_code, status.signal) or status.reason
        if status.reason in _OWN_ENDS and (kills := limits.describe_kills()) is not None:
            status.note(kills)


def _read_output(run_dir: str) -> bytes:
    """Of a command that was not executed: only the launcher's program has written to its log."""
    return b"".join(entry.data for entry in read_log(run_dir))
