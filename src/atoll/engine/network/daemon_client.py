"""The client of the daemon: finds it, starts it when it is first needed, and sends requests.

The daemon listens in Atoll's home, which only its owner can enter. If two commands start one at the
same time, the second finds the lock taken and ends.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.engine.state.session import Session
from atoll.host import files, locks, procfs
from atoll.host.process import wait_until
from atoll.host.programs import PROXY_VARIABLES, own_environment, python_command
from atoll.keeper import peer_check, requests, wire
from atoll.model.daemon_messages import (
    AttachReply,
    AttachRequest,
    DaemonRequest,
    DoneReply,
    R,
    StatusReply,
    StatusRequest,
    StopRequest,
    encode_request,
    parse_reply,
)
from atoll.model.enclosure import EnclosureError
from atoll.model.errors import (
    AtollError,
    DriverError,
    IsolationError,
    PrerequisiteError,
    SpecError,
    StateError,
)
from atoll.model.state import CapsuleRecord
from atoll.version import DAEMON_REVISION, __version__

if TYPE_CHECKING:
    from atoll.model.shapes import DaemonStatusShape

SOCKET = "socket"
LOG = "log"
OFF = "ATOLL_DAEMON"
"""Set to `off`, no daemon is started: no ports are published, no capsule has network access."""
_BUS = "DBUS_SESSION_BUS_ADDRESS"
"""The way to the owner's keyring, where the key of the vault may be."""
_ROOTS = ("SSL_CERT_FILE",)
"""The certificates that the owner trusts: the broker verifies servers with them."""
_PATIENCE_S = 30.0
_STARTED_S = 20.0
_KINDS: dict[str, type[AtollError]] = {
    kind.kind: kind
    for kind in (SpecError, PrerequisiteError, StateError, DriverError, IsolationError)
}


def directory_of(home: Path) -> Path:
    return home / "daemon"


def lock_of(home: Path) -> locks.Lock:
    return locks.Lock(home / "locks" / "daemon")


def is_wanted(session: Session) -> bool:
    """Whether a daemon may be started: not for a session without background work."""
    if session.read_only:
        return False
    return session.background and session.owner.get(OFF, "").lower() not in ("off", "0", "no")


def ask(session: Session, request: DaemonRequest, kind: type[R], *, start: bool = True) -> R:
    """The daemon's reply. A daemon of another version, or one that dies, is replaced and asked
    again.

    Raises StateError when there is none and none is to be started, DriverError when its reply is
    not valid, and what the daemon raises.
    """
    found: list[dict[str, object]] = []

    def is_answered() -> bool:
        sock = find(session.home)
        if sock is None:
            if start and session.read_only:
                raise StateError(
                    "the daemon is not running, and cannot start on a read-only filesystem",
                    hint=f"mount '{session.home}' for writing",
                )
            if not start or not is_wanted(session):
                raise StateError("the daemon is not running", hint="it starts when it is needed")
            begin(session)
            return False
        with sock:
            reply = _find_reply(sock, request)
            if start and reply is not None and not _is_current(reply):
                # After an upgrade: it releases everything, and the next daemon continues.
                _find_reply(sock, StopRequest())
                return False
        found.extend([] if reply is None else [reply])
        return reply is not None

    if not wait_until(is_answered, timeout_s=_STARTED_S):
        raise DriverError("the daemon does not answer", hint=_cure(_find_watcher(session.home)))
    try:
        return parse_reply(kind, _checked(found[0]))
    except EnclosureError as error:
        raise DriverError(
            f"the daemon's reply is not valid: {error}", hint="atoll daemon logs"
        ) from error


def status(session: Session) -> DaemonStatusShape:
    """Raises StateError when there is none."""
    return ask(session, StatusRequest(), StatusReply, start=False).status


def stop(session: Session) -> DaemonStatusShape:
    """Ends the daemon and waits; returns its last status. Raises StateError when there is none."""
    before = status(session)
    # Asked now: its socket may be gone when it is needed.
    watcher = _find_watcher(session.home)
    ask(session, StopRequest(), DoneReply, start=False)
    path = lock_of(session.home).path
    if not wait_until(lambda: not locks.is_locked(path), timeout_s=_STARTED_S):
        raise DriverError("the daemon does not end", hint=_cure(watcher))
    return before


def _find_watcher(home: Path) -> int | None:
    """The daemon's first process, which listens on its socket and starts the others."""
    with suppress(OSError):
        sock = find(home)
        if sock is not None:
            with sock:
                return peer_check.peer_pid(sock)
    return None


def _cure(watcher: int | None) -> str:
    """What to do about a daemon that does not answer or does not end."""
    if watcher is None:
        return "atoll daemon logs"
    if procfs.is_stopped(watcher):
        return f"kill -CONT {watcher}, or: kill -9 {watcher}"
    return f"atoll daemon logs, then: kill -9 {watcher}"


def log_lines(home: Path) -> Iterator[str]:
    for name in (f"{LOG}.old", LOG):
        content = files.read_regular(directory_of(home) / name, limit_bytes=1 << 24)
        yield from (content or b"").decode(errors="replace").splitlines()


def attach(session: Session, capsule: CapsuleRecord) -> bool:
    """Has the daemon serve the capsule's network; False when no process holds its view.

    Without a daemon the run is started without network access.
    """
    if not is_wanted(session):
        return True
    try:
        reply = ask(session, AttachRequest(capsule.id), AttachReply)
    except (DriverError, StateError, PrerequisiteError) as error:
        session.warn(f"`{capsule.name}` has no network access: {error}")
        return True
    for service, problem in reply.problems.items():
        session.warn(f"`{capsule.name}` cannot use `{service}`: {problem}")
    return reply.held


def notify(session: Session, capsule: CapsuleRecord) -> None:
    """Has the daemon publish the ports of a capsule whose view is held. A daemon that is only
    starting is not waited for: it finds active capsules itself.
    """
    if not is_wanted(session):
        return
    sock = find(session.home)
    if sock is None:
        begin(session)
        return
    with sock:
        _find_reply(sock, AttachRequest(capsule.id))


def find(home: Path) -> socket.socket | None:
    """A connection to the daemon that serves a home; None when there is none."""
    place = directory_of(home)
    try:
        return wire.connect(place, SOCKET, socket.SOCK_SEQPACKET, timeout_s=_PATIENCE_S)
    except (FileNotFoundError, ConnectionRefusedError):
        return None


def find_answer(home: Path, request: DaemonRequest, kind: type[R], *, timeout_s: float) -> R | None:
    """The daemon's reply; None without a daemon of this user and version that answers in time."""
    try:
        sock = find(home)
    except OSError:
        return None
    if sock is None:
        return None
    with sock:
        if peer_check.credentials(sock)[1] != os.geteuid():
            return None
        sock.settimeout(timeout_s)
        reply = _find_reply(sock, request)
    if reply is None or not _is_current(reply) or "error" in reply:
        return None
    try:
        return parse_reply(kind, reply)
    except EnclosureError:
        return None


def begin(session: Session) -> None:
    """Starts a daemon, unless there is one. It is not waited for."""
    files.make_private_directory(directory_of(session.home))
    argv = python_command("atoll.daemon.main", str(session.home))
    proxies = {
        key: value
        for key, value in session.owner.items()
        if key.lower() in PROXY_VARIABLES and value
    }
    roots = {key: session.owner[key] for key in _ROOTS if session.owner.get(key)}
    env = {**own_environment(), **proxies, **roots}
    if bus := session.owner.get(_BUS):
        env[_BUS] = bus
    session.forkserver.start_once(lock_of(session.home), argv, env)


def _is_current(reply: dict[str, object]) -> bool:
    return (reply.get("version"), reply.get("revision")) == (__version__, DAEMON_REVISION)


def _find_reply(sock: socket.socket, request: DaemonRequest) -> dict[str, object] | None:
    """None when the daemon closed the connection."""
    try:
        reply, fds = requests.ask(sock, encode_request(request))
    except (EOFError, OSError, wire.WireError):
        return None
    for fd in fds:
        os.close(fd)
    return reply


def _checked(reply: dict[str, object]) -> dict[str, object]:
    if "error" in reply:
        kind = _KINDS.get(str(reply.get("kind")), DriverError)
        hint = reply.get("hint")
        raise kind(str(reply["error"]), hint=None if hint is None else str(hint))
    return reply
