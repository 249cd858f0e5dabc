"""Commands that Atoll itself runs in a view: children of the holder, one per client connection.

The client passes the standard streams, gets the wait status, and may send signals. A command whose
client disconnects is ended. A holder that dies takes its commands with it.
"""

from __future__ import annotations

import contextlib
import os
import signal

from atoll.keeper import requests
from atoll.keeper.limits import RunLimits
from atoll.keeper.spawn import fork_command
from atoll.keeper.spec import KeeperSpecError, parse_spec
from atoll.keeper.start_error import StartError
from atoll.keeper.wire import WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Mapping

    from atoll.keeper.process_tree import Exit
    from atoll.keeper.spec import RunDefaults

STREAMS = 3


class _Running:
    __slots__ = ("client", "last_signal")

    def __init__(self, client: socket.socket, last_signal: int) -> None:
        self.client = client
        self.last_signal = last_signal


class ViewCommands:
    """The commands that run now; truthy while there are any."""

    def __init__(self, group: Mapping[str, str], lock_fd: int, imposed: RunDefaults) -> None:
        self._group = group
        self._lock_fd = lock_fd
        self._imposed = imposed
        self._running: dict[int, _Running] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(
        self, raw: dict[str, object], streams: list[int], client: socket.socket
    ) -> tuple[int, int]:
        """Starts the command of the spec `raw`. Returns its process id and the read end of the
        pipe that reports why it could not be executed (`spawn.read_failure`).
        """
        if any(running.client is client for running in self._running.values()):
            raise WireError("one command per connection")
        try:
            spec = self._imposed.on_command(parse_spec(raw))
        except KeeperSpecError as error:
            raise WireError(str(error)) from error
        # Git removes its lock files on SIGTERM. In a sandbox no process gets SIGTERM first.
        last_signal = signal.SIGTERM if spec.walls is None else signal.SIGKILL
        stdin, stdout, stderr = streams
        limits = None if spec.limits is None else RunLimits(spec.limits, self._group)
        try:
            pid, failure = fork_command(
                spec,
                (stdin, stdout, stderr),
                limits=limits,
                last_signal=last_signal,
                # A sandboxed process could release the lock and write its file.
                kept=(self._lock_fd,) if spec.walls is None else (),
            )
        except StartError as error:
            raise WireError(error.message) from error
        self._running[pid] = _Running(client, last_signal)
        return pid, failure

    def send_signal(self, number: int, client: socket.socket) -> None:
        for pid, running in self._running.items():
            if running.client is client:
                os.kill(pid, number)

    def report(self, exits: Iterable[Exit]) -> None:
        """Sends the wait status of commands that have ended to their clients."""
        for child in exits:
            running = self._running.pop(child.pid, None)
            if running is not None:
                # A client that has disconnected does not wait for the status.
                with contextlib.suppress(OSError):
                    requests.send(running.client, {"wait_status": child.wait_status})

    def leave(self, client: socket.socket) -> None:
        """Ends the command of a client that has disconnected."""
        for pid, running in self._running.items():
            if running.client is client:
                os.kill(pid, running.last_signal)
