"""The daemon from the outside: found, started when it is first needed, asked.

It listens in Atoll's home, where only its owner gets in. Whoever finds none starts one; of two
that are started at once the second finds the lock taken and ends.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from atoll.engine.session import Session
from atoll.host import files, locks, procfs
from atoll.host.process import own_environment, wait_until
from atoll.keeper import asking, wire
from atoll.model.errors import (
    AtollError,
    DriverError,
    IsolationError,
    PrerequisiteError,
    SpecError,
    StateError,
)
from atoll.model.state import Capsule
from atoll.version import DAEMON_REVISION, __version__

SOCKET = "socket"
LOG = "log"
OFF = "ATOLL_DAEMON"
"""Set to `off`, no daemon is started: nothing is published, and nothing gets out."""
_PATIENCE_S = 30.0
_PEER = struct.Struct("=3i")
_STARTED_S = 20.0
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_KINDS: dict[str, type[AtollError]] = {
    kind.kind: kind
    for kind in (SpecError, PrerequisiteError, StateError, DriverError, IsolationError)
}


def directory_of(home: Path) -> Path:
    return home / "daemon"


def lock_of(home: Path) -> locks.Lock:
    return locks.Lock(home / "locks" / "daemon")


def is_wanted(session: Session) -> bool:
    """A session that leaves nothing behind has no daemon either."""
    if session.read_only:
        return False
    return session.background and session.owner.get(OFF, "").lower() not in ("off", "0", "no")


def ask(session: Session, request: dict[str, object], *, start: bool = True) -> dict[str, object]:
    """What the daemon answers; one of another version, or one that dies over it, is replaced and
    asked again.

    Raises StateError when there is none and none is to be started, and what the daemon raises.
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
                # After an upgrade: it hands everything back, and the next one takes it.
                _find_reply(sock, {"do": "stop"})
                return False
        found.extend([] if reply is None else [reply])
        return reply is not None

    if not wait_until(is_answered, timeout_s=_STARTED_S):
        raise DriverError("the daemon does not answer", hint=_cure(_find_watcher(session.home)))
    return _checked(found[0])


def status(session: Session) -> dict[str, object]:
    """Raises StateError when there is none."""
    return ask(session, {"do": "status"}, start=False)


def stop(session: Session) -> dict[str, object]:
    """Ends the daemon and waits for that; returns what it was. Raises StateError without one."""
    before = status(session)
    # Asked now: its socket may be gone when it is needed.
    watcher = _find_watcher(session.home)
    ask(session, {"do": "stop"}, start=False)
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
                peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            return int(_PEER.unpack(peer)[0]) or None
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


def let_out(session: Session, capsule: Capsule) -> bool:
    """Has the ways out of a capsule opened; False when nobody holds its view.

    Nobody who runs something shall fail for want of a daemon: without one nothing gets out.
    """
    if not is_wanted(session):
        return True
    try:
        reply = ask(session, {"do": "attach", "capsule": capsule.id})
    except (DriverError, StateError, PrerequisiteError) as error:
        session.warn(f"nothing gets out of `{capsule.name}`: {error}")
        return True
    for door, problem in _problems(reply):
        session.warn(f"`{capsule.name}` has no way out by `{door}`: {problem}")
    return bool(reply["held"])


def _problems(reply: dict[str, object]) -> list[tuple[str, str]]:
    found = reply.get("problems")
    return list(found.items()) if isinstance(found, dict) else []


def mention(session: Session, capsule: Capsule) -> None:
    """Has a capsule's ports looked after, whose view is held; nobody waits for a daemon that only
    starts: it finds by itself what lives.
    """
    if not is_wanted(session):
        return
    sock = find(session.home)
    if sock is None:
        begin(session)
        return
    with sock:
        _find_reply(sock, {"do": "attach", "capsule": capsule.id})


def find(home: Path) -> socket.socket | None:
    """A connection to the daemon that serves a home; None when there is none."""
    try:
        sock, handle, path = wire.socket_in(directory_of(home), SOCKET, socket.SOCK_SEQPACKET)
    except FileNotFoundError:
        return None
    try:
        sock.settimeout(_PATIENCE_S)
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    finally:
        os.close(handle)
    return sock


def find_answer(
    home: Path, request: dict[str, object], *, timeout_s: float
) -> dict[str, object] | None:
    """What the daemon answers; None without one of this user and version that answers in time."""
    try:
        sock = find(home)
    except OSError:
        return None
    if sock is None:
        return None
    with sock:
        peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        if _PEER.unpack(peer)[1] != os.geteuid():
            return None
        sock.settimeout(timeout_s)
        reply = _find_reply(sock, request)
    return reply if reply is not None and _is_current(reply) and "error" not in reply else None


def begin(session: Session) -> None:
    """Starts a daemon, unless there is one. It is not waited for."""
    lock = lock_of(session.home)
    if locks.is_locked(lock.path) or not lock.acquire():
        return
    files.make_private_directory(directory_of(session.home))
    root = str(Path(__file__).parents[2])
    program = f"import sys; sys.path.append({root!r}); from atoll.daemon.main import main; main()"
    argv = [sys.executable, "-I", "-c", program, str(session.home)]
    proxies = {
        key: value for key, value in session.owner.items() if key.lower() in _PROXIES and value
    }
    try:
        # It has our lock from its first moment, so that nobody starts another meanwhile.
        session.nursery.watch(
            str(session.home / "locks" / "none"),
            argv,
            {**own_environment(), **proxies},
            keep=(lock.fd,),
        )
    finally:
        lock.release()


def _is_current(reply: dict[str, object]) -> bool:
    return (reply.get("version"), reply.get("revision")) == (__version__, DAEMON_REVISION)


def _find_reply(sock: socket.socket, request: dict[str, object]) -> dict[str, object] | None:
    """None when the daemon went away over it."""
    try:
        reply, fds = asking.ask(sock, request)
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
    return {key: value for key, value in reply.items() if key != "revision"}
