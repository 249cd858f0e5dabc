"""The holder: the process that keeps a capsule's view open, and the parent of the capsule's runs.

It builds the view once, then serves requests on its socket: it starts runs and supervises them
(`supervisor.py`), runs Atoll's own short commands in the view (`view_commands.py`), and ends on
request or after an idle time. Every process in the view also holds its lock, so that no second
holder can ever mount the same upper layer.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time

from atoll.keeper import calls, idle_monitor, mounts, networks, requests, wire
from atoll.keeper.child_process import ServedDirectory, leave_everything, run_process
from atoll.keeper.handles import Opened
from atoll.keeper.loop import READ, Loop
from atoll.keeper.peer_check import Origin, peer_pid
from atoll.keeper.private_files import PrivateFiles
from atoll.keeper.reserved_ports import ReservedPorts
from atoll.keeper.spec import RunDefaults
from atoll.keeper.supervisor import Supervisor
from atoll.keeper.view_commands import STREAMS, ViewCommands

TYPE_CHECKING = False
if TYPE_CHECKING:
    from atoll.model.enclosure import HoldRequest

_BUILD_FAILED = 1
_RUNS = "runs"
_PLACE_S = 30.0
"""The interval between checks that the capsule's directory still exists."""


def fork_holder(order: HoldRequest, lock_fd: int, ready_fd: int, gate_fd: int | None = None) -> int:
    """Start a holder; returns its process id.

    With `gate_fd` it reports its process id first, and reads its cgroup from there: a JSON line
    with `group`.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        run_process(order.directory, lambda: _hold(order, lock_fd, ready_fd, parent, gate_fd))
    return pid


def _hold(order: HoldRequest, lock_fd: int, news: int, parent: int, gate: int | None = None) -> int:
    leave_everything({lock_fd, news, *(() if gate is None else (gate,))})
    calls.name_process("atoll-keeper")
    if gate is not None:
        # The client creates the cgroup meanwhile.
        os.write(news, json.dumps({"pid": os.getpid()}).encode() + b"\n")
    directory = order.directory
    origin = Origin(is_strict=order.walls is not None)
    kept = _keep_idle_monitor(order.monitor_dir)
    try:
        # Before the view covers anything: the directory may be anywhere.
        listener = wire.listen(directory, requests.SOCKET, socket.SOCK_SEQPACKET)
        private = mounts.enter_view(order.view)
    except (OSError, mounts.ViewError) as error:
        wire.remove(directory, requests.SOCKET)
        os.write(news, json.dumps({"error": str(error)}).encode() + b"\n")
        return _BUILD_FAILED
    group = order.view.group
    if gate is not None:
        confined = _await_group(gate)
        if confined is None:
            wire.remove(directory, requests.SOCKET)
            return _BUILD_FAILED
        group = confined
    # After the namespaces: a change of credentials would reset it.
    if order.is_bound and not calls.die_with_parent(signal.SIGTERM, parent):
        return _BUILD_FAILED
    files = None if private is None else PrivateFiles(private, order.view.uid)
    holder = Holder(order, listener, lock_fd, origin, group, files)
    os.write(news, json.dumps({"pid": os.getpid()}).encode() + b"\n")
    os.close(news)
    holder.serve()
    if kept is not None:
        kept.close()
    return 0


def _await_group(gate: int) -> dict[str, str] | None:
    """The cgroup; None if the process that started us has died."""
    with os.fdopen(gate, "rb") as stream:
        line = stream.readline()
    if not line:
        return None
    group = wire.parse_json(line).get("group")
    return group if isinstance(group, dict) else {}


def _keep_idle_monitor(directory: str) -> socket.socket | None:
    """A connection that keeps the idle monitor alive until the next run needs it."""
    try:
        return idle_monitor.connect(directory) if directory else None
    except OSError:
        return None


class Holder:
    def __init__(
        self,
        order: HoldRequest,
        listener: socket.socket,
        lock_fd: int,
        origin: Origin,
        group: dict[str, str],
        files: PrivateFiles | None = None,
    ) -> None:
        self._directory = order.directory
        self._pool = order.view.pool
        self._idle_s = order.idle_s
        self._listener = listener
        self._lock_fd = lock_fd
        self._loop = Loop()
        self._clients: dict[int, socket.socket] = {}
        self._group = group
        self._origin = origin
        imposed = RunDefaults(order.walls, order.limits)
        self._supervisor = Supervisor(
            self._directory,
            origin,
            kept=(lock_fd,),
            group=self._group,
            imposed=imposed,
            monitor_dir=order.monitor_dir or None,
        )
        self._files = files
        self._gates: set[int] = set()
        self._is_pinned = False
        self._is_ending = False
        has_network = order.view.network != networks.HOST
        self._ports = ReservedPorts() if has_network else None
        self._commands = ViewCommands(self._group, lock_fd, imposed)
        # Kept open until exit: the kernel then frees the view's lock before it unmounts, which
        # takes tens of milliseconds after thousands of changes.
        self._mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._last = time.monotonic()
        self._place = ServedDirectory(self._directory)
        self._place_at = self._last + _PLACE_S
        self._is_lost = False

    def serve(self) -> None:
        """Until it is stopped, or has been idle long enough."""
        self._loop.catch_signals()
        self._loop.watch(self._listener.fileno(), READ, self._accept)
        while not self._is_ending:
            self._loop.turn(self._wait_s())
            self._loop.children_changed = False
            self._tend()
            if self._loop.stop_is_asked or self._is_idle() or self._is_abandoned():
                self._is_ending = True
        wire.remove(self._directory, requests.SOCKET)
        self._supervisor.dismiss()
        if self._is_idle():
            self._sync()

    def _sync(self) -> None:
        """No client waits now; afterwards everything written in the view survives a crash."""
        calls.sync_filesystem(self._pool)
        try:
            with open(
                os.path.join(self._directory, requests.WRITTEN), "w", encoding="ascii"
            ) as file:
                file.write(requests.SYNCED)
        except OSError:  # the capsule is being removed
            return

    def _is_abandoned(self) -> bool:
        """Whether the capsule's directory was removed by hand. Its runs end by themselves then."""
        now = time.monotonic()
        if now >= self._place_at:
            self._place_at = now + _PLACE_S
            self._is_lost = self._place.is_lost()
        return self._is_lost and not self._supervisor

    def _wait_s(self) -> float:
        waits = (
            self._supervisor.wait_s() if self._is_used() else self._rest_s(),
            None if self._files is None else self._files.wait_s(),
            self._place_at - time.monotonic(),
        )
        return max(0.0, min(wait_s for wait_s in waits if wait_s is not None))

    def _is_used(self) -> bool:
        return bool(self._supervisor) or bool(self._commands) or self._is_pinned

    def _is_idle(self) -> bool:
        return not self._is_used() and self._rest_s() <= 0

    def _rest_s(self) -> float:
        return self._last + self._idle_s - time.monotonic()

    def _tend(self) -> None:
        if self._files is not None:
            self._files.expire()
        before = len(self._supervisor)
        self._commands.report(self._supervisor.tend())
        if len(self._supervisor) != before:
            self._last = time.monotonic()
            # Now that no client waits.
            self._supervisor.prepare()

    def _accept(self, _events: int) -> None:
        client = self._origin.accept(self._listener)
        if client is None:
            return
        self._clients[client.fileno()] = client
        self._loop.watch(client.fileno(), READ, lambda _: self._answer(client))
        self._answer(client)  # who connects asks at once

    def _answer(self, client: socket.socket) -> None:
        fds: list[int] = []
        try:
            request, fds = requests.receive(client)
            if "list" not in request:
                # The daemon asks this of every view from time to time: that is no use of one.
                self._last = time.monotonic()
            reply, given = self._serve(request, fds, client)
            requests.send(client, reply, given)
        except BlockingIOError:
            return
        except (EOFError, OSError, ValueError, TypeError, wire.WireError):
            self._gates.discard(client.fileno())
            self._commands.leave(client)
            if self._ports is not None:
                self._ports.end(client.fileno())
            self._loop.forget(client.fileno())
            del self._clients[client.fileno()]
            client.close()
        finally:
            for fd in fds:
                os.close(fd)

    def _require_own(self, run_dir: str) -> str:
        """The directory of a run of this capsule, reached through no link."""
        parent, number = os.path.split(run_dir)
        if parent != os.path.join(self._directory, _RUNS) or not number.isdecimal():
            raise wire.WireError("this is not the directory of a run of this capsule")
        with Opened(os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as place:
            flags = os.O_PATH | os.O_DIRECTORY
            os.close(calls.open_beneath(place, f"{_RUNS}/{number}", flags))
        return run_dir

    def _serve(
        self, request: dict[str, object], fds: list[int], sock: socket.socket
    ) -> tuple[dict[str, object], tuple[int, ...]]:
        client = sock.fileno()
        match request:
            case {"start": str(run_dir)} if len(fds) in (2, 3):
                if not self._gates:
                    is_owners = request.get("owner") is True
                    run_dir = self._require_own(run_dir)
                    starter = peer_pid(sock)
                    self._supervisor.start(
                        run_dir, fds[0], fds[1], is_owners=is_owners, starter=starter,
                        private_fd=fds[2] if len(fds) == 3 else None,
                    )  # fmt: skip
                return {"held": bool(self._gates)}, ()
            case {"hold": _} | {"ping": _}:
                if "hold" in request:
                    # No run starts until the client leaves.
                    self._gates.add(client)
                return self._describe(), ()
            case {"execute": _} | {"signal": _}:
                return self._serve_command(request, fds, sock)
            case {"sockets": _} | {"ports": _}:
                return {}, self._give_sockets(request.get("sockets"), fds, client)
            case {"put": _} | {"drop": _} | {"list": _} if self._files is not None:
                return self._files.serve(request, fds), ()
            case {"pin": _} | {"end": _}:
                return self._stay() if "pin" in request else self._end(), ()
        raise wire.WireError("no such request")

    def _stay(self) -> dict[str, object]:
        self._is_pinned = True
        return {"pid": os.getpid()}

    def _end(self) -> dict[str, object]:
        self._tend()
        self._is_ending = not self._supervisor and not self._commands
        return {"runs": len(self._supervisor)}

    def _serve_command(
        self, request: dict[str, object], fds: list[int], client: socket.socket
    ) -> tuple[dict[str, object], tuple[int, ...]]:
        match request:
            case {"execute": dict(spec)} if len(fds) == STREAMS:
                pid, failure = self._commands.start(spec, fds, client)
                fds.append(failure)  # closed here as soon as it is sent
                return {"pid": pid}, (failure,)
            case {"signal": int(number)} if 0 < number < signal.NSIG:
                self._commands.send_signal(number, client)
                return {}, ()
        raise wire.WireError("no such request")

    def _describe(self) -> dict[str, object]:
        """`held` is what its group is for, `files` whether there can be private files."""
        return {
            "pid": os.getpid(),
            "runs": len(self._supervisor),
            "waiting": self._supervisor.waiting,
            "held": list(self._group),
            "files": self._files is not None,
        }

    def _give_sockets(self, wanted: object, fds: list[int], client: int) -> tuple[int, ...]:
        """New ones as `wanted`, or those of the ports that are kept for the client."""
        if isinstance(wanted, list):
            made = [sock.detach() for sock in networks.make_sockets(wanted)]
            fds += made  # closed here as soon as they are there
            return tuple(made)
        if wanted is not None or self._ports is None:
            raise wire.WireError("no such sockets")
        self._ports.open_for(client)
        return tuple(sock.fileno() for sock in self._ports.sockets)
