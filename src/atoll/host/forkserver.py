"""The client of the fork server, which is started when it is first needed."""

from __future__ import annotations

import json
import os
import socket
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from atoll.host import locks
from atoll.host.process import Companion, launch, wait_until
from atoll.host.programs import own_environment, python_command
from atoll.keeper import requests
from atoll.model.enclosure import HoldRequest, encode
from atoll.model.errors import DriverError

if TYPE_CHECKING:
    from atoll.keeper.requests import ForkServerRequest, HoldViewRequest

_ENDED_S = 5.0


class Confined(NamedTuple):
    """The group that a holder has for its runs."""

    group: dict[str, str]
    """Its directories by their use (`atoll.keeper.groups`)."""


class ForkServer:
    """One per session; it goes when the session goes. `label` is what `ps` shows it is for."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._turn = threading.Lock()
        self._socket: socket.socket | None = None
        self._child: Companion | None = None
        self.close: Callable[[], object] = lambda: None

    def start_run(self, run_dir: str, lock: int, private: tuple[int, ...] = ()) -> None:
        """Starts the keeper of a run that needs no view. Raises DriverError when it cannot.

        `private` is the descriptor of its private variables, if it has any.
        """
        await_ready(lambda ready: self._ask({"start": run_dir}, (lock, ready, *private)), run_dir)

    def hold(
        self,
        request: HoldRequest,
        lock: int,
        confine: Callable[[int], Confined] | None = None,
    ) -> int:
        """Starts the holder of a view; returns its process id. Raises DriverError when it cannot:
        then there is none.

        `confine` is called with the process id while the view is built, and makes the group of the
        holder's runs; without it the group is the view's.
        """
        hold: HoldViewRequest = {"hold": encode(request)}
        if confine is None:
            news = await_ready(lambda ready: self._ask(hold, (lock, ready)), "the view")
            return int(str(news["pid"]))
        reader, writer = os.pipe()
        # Without a buffer: closing would try again to send what could not be sent.
        with os.fdopen(writer, "wb", buffering=0) as gate:

            def begin(ready: int) -> None:
                try:
                    self._ask(hold, (lock, ready, reader))
                finally:
                    os.close(reader)

            def let_go(holder: int) -> None:
                confined = confine(holder)
                # One that has failed meanwhile reports the reason, or nothing.
                with suppress(BrokenPipeError):
                    gate.write(json.dumps(confined._asdict()).encode() + b"\n")

            news = await_ready(begin, "the view", first=let_go)
        return int(str(news["pid"]))

    def watch(
        self,
        lock_path: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        keep: tuple[int, ...] = (),
    ) -> None:
        """Starts a command as soon as a lock is free, also if this process has ended by then.

        It gets the descriptors `keep`; their numbers there are its last arguments.
        """
        self._ask({"watch": lock_path, "argv": list(argv), "env": dict(env)}, keep)

    def start_once(self, lock: locks.Lock, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Starts a command in the background unless its lock is taken, and reaps it. It inherits
        the lock, so that no second one is started meanwhile.
        """
        if locks.is_locked(lock.path) or not lock.acquire():
            return
        try:
            # It starts at once, since this lock does not exist.
            self.watch(str(lock.path.with_name("none")), argv, env, keep=(lock.fd,))
        finally:
            lock.release()

    def thaw_if_killed(self, key: str, pids: Sequence[int]) -> None:
        """Resumes stopped processes if this one dies first; `pids` replace earlier ones."""
        self._ask({"frozen": key, "pids": list(pids)}, ())

    def _ask(self, request: ForkServerRequest, fds: tuple[int, ...]) -> None:
        with self._turn:
            try:
                reply, _ = requests.ask(self._connection(), request, fds)
            except (EOFError, ConnectionError) as error:
                # The request may have been carried out, so it is not repeated.
                raise DriverError("the fork server was killed", hint="try again") from error
        if "error" in reply:
            raise DriverError(f"the keeper did not start: {reply['error']}")

    def _connection(self) -> socket.socket:
        if self._child is not None and self._child.poll() is not None:
            # It was killed; the processes that it forked live on.
            self.close()
            self._socket = None
        if self._socket is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                arguments = (str(theirs.fileno()), self._label)
                argv = python_command("atoll.keeper.forkserver", *arguments, site=False)
                self._child = launch(argv, keep_fds=(theirs.fileno(),), env=own_environment())
            self._socket = ours
            self.close = weakref.finalize(self, _close, ours, self._child)
        return self._socket


def _close(sock: socket.socket, child: Companion) -> None:
    sock.close()
    if not wait_until(lambda: child.poll() is not None, timeout_s=_ENDED_S):
        # It was stopped (SIGSTOP). The processes that it forked live on.
        child.kill()
        child.wait()


def await_ready(
    begin: Callable[[int], None], subject: str, *, first: Callable[[int], None] | None = None
) -> dict[str, object]:
    """Calls `begin` with the descriptor through which the new keeper reports, and waits.

    With `first`, it reports its process id before anything else, and `first` is called with that.
    Raises DriverError when it dies first or reports an error.
    """
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as ready:
        try:
            begin(writer)
        finally:
            os.close(writer)
        if first is not None:
            first(int(str(_require_news(ready.readline(), subject)["pid"])))
        return _require_news(ready.readline(), subject)


def _require_news(line: bytes, subject: str) -> dict[str, object]:
    news: dict[str, object] = json.loads(line) if line else {"error": "it died at once"}
    if "error" in news:
        raise DriverError(f"the keeper of `{subject}` did not start: {news['error']}")
    return news
