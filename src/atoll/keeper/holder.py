"""The holder: the process that a capsule's view lives in, and the parent of the capsule's runs.

It builds the view once, then serves requests on its socket: it starts runs and watches over them
(`wards.py`), lends the view to processes that ask a short question inside, and ends when it is
told to or when nothing has happened for a while. Whatever lives in the view also holds its lock,
so that no second holder can ever mount the same upper layer.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time

from atoll.keeper import asking, calls, lookout, mounts, networks, wire
from atoll.keeper.forking import leave_everything, run_process
from atoll.keeper.loop import READ, Loop
from atoll.keeper.peers import Origin, peer_pid
from atoll.keeper.places import Place
from atoll.keeper.reserved_ports import ReservedPorts
from atoll.keeper.wards import Wards

_BUILD_FAILED = 1
_RUNS = "runs"
_PLACE_S = 30.0
"""Between two looks whether the capsule's directory is still there."""


def fork_holder(
    view: dict[str, object], lock_fd: int, ready_fd: int, gate_fd: int | None = None
) -> int:
    """Start a holder; `view["directory"]` is where its socket is. Returns its process id.

    One that `is_bound` ends with the nursery, and so with the command that it serves. With
    `gate_fd` it tells its process id first, and its group comes through there: a JSON line with
    `group` and `is_scoped`.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        directory = str(view["directory"])
        run_process(directory, lambda: _hold(view, lock_fd, ready_fd, parent, gate_fd))
    return pid


def _hold(
    view: dict[str, object], lock_fd: int, news: int, parent: int, gate: int | None = None
) -> int:
    leave_everything({lock_fd, news, *(() if gate is None else (gate,))})
    calls.name_process("atoll-keeper")
    if gate is not None:
        # Whoever makes its group does so meanwhile.
        os.write(news, json.dumps({"pid": os.getpid()}).encode() + b"\n")
    directory = str(view["directory"])
    origin = Origin(is_strict=view.get("walls") is not None)
    kept = _keep_lookout(view.get("lookout"))
    try:
        # Before the view covers anything: the directory may lie anywhere.
        listener = wire.listen(directory, asking.SOCKET, socket.SOCK_SEQPACKET)
        mounts.enter_view(view)
    except (OSError, mounts.ViewError) as error:
        wire.remove(directory, asking.SOCKET)
        os.write(news, json.dumps({"error": str(error)}).encode() + b"\n")
        return _BUILD_FAILED
    if gate is not None:
        confined = _await_group(gate)
        if confined is None:
            wire.remove(directory, asking.SOCKET)
            return _BUILD_FAILED
        view = {**view, **confined}
    # After the namespaces: a change of credentials would take the wish back.
    if view.get("is_bound") and not calls.die_with_parent(signal.SIGTERM, parent):
        return _BUILD_FAILED
    holder = Holder(view, listener, lock_fd, origin)
    os.write(news, json.dumps({"pid": os.getpid()}).encode() + b"\n")
    os.close(news)
    holder.serve()
    if kept is not None:
        kept.close()
    return 0


def _await_group(gate: int) -> dict[str, object] | None:
    """`group` and `is_scoped`; None when whoever started us has died."""
    with os.fdopen(gate, "rb") as stream:
        line = stream.readline()
    return wire.parse_json(line) if line else None


def _keep_lookout(directory: object) -> socket.socket | None:
    """A connection that keeps the lookout alive until the next run needs it."""
    try:
        return lookout.connect(directory) if isinstance(directory, str) else None
    except OSError:
        return None


class Holder:
    """`view["walls"]` and `view["limits"]` are those of every run; None: they have none."""

    def __init__(
        self, view: dict[str, object], listener: socket.socket, lock_fd: int, origin: Origin
    ) -> None:
        self._directory = str(view["directory"])
        self._pool = str(view["pool"])
        self._idle_s = float(str(view["idle_s"]))
        self._listener = listener
        self._lock_fd = lock_fd
        self._loop = Loop()
        self._clients: dict[int, socket.socket] = {}
        group = view.get("group")
        self._group: dict[str, str] = group if isinstance(group, dict) else {}
        self._is_scoped = view.get("is_scoped") is True
        self._origin = origin
        given = {"walls": view.get("walls"), "limits": view.get("limits")}
        watched_in = view.get("lookout")
        self._wards = Wards(
            self._directory,
            origin,
            kept=(lock_fd,),
            group=self._group,
            given=given,
            lookout=watched_in if isinstance(watched_in, str) else None,
        )
        self._gates: set[int] = set()
        self._is_pinned = False
        self._is_ending = False
        names = [*(["user"] if view["user"] else []), "mnt"]
        has_network = view.get("network", networks.HOST) != networks.HOST
        names += ["net"] if has_network else []
        self._ports = ReservedPorts() if has_network else None
        flags = os.O_RDONLY | os.O_CLOEXEC
        # The user namespace first: the right to enter the others comes with it.
        self._namespaces = tuple(os.open(f"/proc/self/ns/{name}", flags) for name in names)
        self._last = time.monotonic()
        self._place = Place(self._directory)
        self._place_at = self._last + _PLACE_S
        self._is_lost = False

    def serve(self) -> None:
        """Until told to end, or idle for long enough."""
        self._loop.catch_signals()
        self._loop.watch(self._listener.fileno(), READ, self._accept)
        while not self._is_ending:
            self._loop.turn(self._wait_s())
            self._loop.children_changed = False
            self._tend()
            if self._loop.stop_is_asked or self._is_idle() or self._is_abandoned():
                self._is_ending = True
        wire.remove(self._directory, asking.SOCKET)
        self._wards.dismiss()
        if self._is_idle():
            self._sync()

    def _sync(self) -> None:
        """Nobody waits for it now, and what was written in the view then lives through a crash."""
        calls.sync_filesystem(self._pool)
        try:
            with open(os.path.join(self._directory, asking.WRITTEN), "w", encoding="ascii") as file:
                file.write(asking.SYNCED)
        except OSError:  # the capsule is being removed
            return

    def _is_abandoned(self) -> bool:
        """Whether the capsule's directory was removed by hand. Its runs end by themselves then."""
        now = time.monotonic()
        if now >= self._place_at:
            self._place_at = now + _PLACE_S
            self._is_lost = self._place.is_lost()
        return self._is_lost and not self._wards

    def _wait_s(self) -> float:
        wait_s = self._wards.wait_s() if self._is_used() else self._rest_s()
        place_s = self._place_at - time.monotonic()
        return max(0.0, place_s if wait_s is None else min(wait_s, place_s))

    def _is_used(self) -> bool:
        return bool(self._wards) or self._is_pinned

    def _is_idle(self) -> bool:
        return not self._is_used() and self._rest_s() <= 0

    def _rest_s(self) -> float:
        return self._last + self._idle_s - time.monotonic()

    def _tend(self) -> None:
        before = len(self._wards)
        self._wards.tend()
        if len(self._wards) != before:
            self._last = time.monotonic()
            # Now that nobody waits for us.
            self._wards.prepare()

    def _accept(self, _events: int) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        if not self._origin.admits(client):
            client.close()
            return
        client.settimeout(0)
        self._clients[client.fileno()] = client
        self._loop.watch(client.fileno(), READ, lambda _: self._answer(client))
        self._answer(client)  # who connects asks at once

    def _answer(self, client: socket.socket) -> None:
        self._last = time.monotonic()
        fds: list[int] = []
        try:
            request, fds = asking.receive(client)
            reply, given = self._serve(request, fds, client)
            asking.send(client, reply, given)
        except BlockingIOError:
            return
        except (EOFError, OSError, ValueError, TypeError, wire.WireError):
            self._gates.discard(client.fileno())
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
        place = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            flags = os.O_PATH | os.O_DIRECTORY
            os.close(calls.open_beneath(place, f"{_RUNS}/{number}", flags))
        finally:
            os.close(place)
        return run_dir

    def _serve(
        self, request: dict[str, object], fds: list[int], sock: socket.socket
    ) -> tuple[dict[str, object], tuple[int, ...]]:
        client = sock.fileno()
        match request:
            case {"start": str(run_dir)} if len(fds) == 2:
                if not self._gates:
                    is_owners = request.get("owner") is True
                    run_dir = self._require_own(run_dir)
                    starter = peer_pid(sock)
                    self._wards.start(run_dir, fds[0], fds[1], is_owners=is_owners, starter=starter)
                return {"held": bool(self._gates)}, ()
            case {"hold": _} | {"ping": _}:
                if "hold" in request:
                    # No run starts until the client leaves.
                    self._gates.add(client)
                return self._describe(), ()
            case {"join": _}:
                told = {"group": self._group, "is_scoped": self._is_scoped}
                return told, (self._lock_fd, *self._namespaces)
            case {"sockets": _} | {"ports": _}:
                return {}, self._give_sockets(request.get("sockets"), fds, client)
            case {"pin": _}:
                self._is_pinned = True
                return {"pid": os.getpid()}, ()
            case {"end": _}:
                self._tend()
                self._is_ending = not self._wards
                return {"runs": len(self._wards)}, ()
        raise wire.WireError("no such request")

    def _describe(self) -> dict[str, object]:
        """`held` is what its group is for."""
        return {
            "pid": os.getpid(),
            "runs": len(self._wards),
            "waiting": self._wards.waiting,
            "held": list(self._group),
        }

    def _give_sockets(self, wanted: object, fds: list[int], client: int) -> tuple[int, ...]:
        """New ones as `wanted`, or those of the ports that are kept for the client."""
        if isinstance(wanted, list):
            made = [sock.detach() for sock in networks.make_sockets(wanted)]
            fds += made  # closed here as soon as they are there
            return tuple(made)
        if wanted is not None or self._ports is None:
            raise wire.WireError("no such sockets")
        self._ports.lend(client)
        return tuple(sock.fileno() for sock in self._ports.sockets)
