"""Which processes may connect to a keeper: those in the namespaces of its starter.

A capsule's processes have the owner's user id, or one that maps to it. Their
namespaces distinguish them from the owner's: behind walls every process is in its own pid, mount
and user namespaces, and cannot leave them.
"""

from __future__ import annotations

import os
import select
import socket
import struct

from atoll.keeper.handles import Opened

_SO_PEERPIDFD = 77
_PEER = struct.Struct("3i")
_STATUS_BYTES = 1 << 14
_MOUNTS_BYTES = 1 << 20


class Origin:
    """The namespaces of the calling process, to be taken before it makes its own ones.

    `is_strict`: all of them count; else only the pid namespace, for views without walls, whose
    processes may use Atoll themselves.
    """

    __slots__ = ("_depth", "_mount", "_user", "is_strict")

    def __init__(self, *, is_strict: bool) -> None:
        self.is_strict = is_strict
        handle = os.pidfd_open(os.getpid())
        self._depth = _pid_depth(handle)
        os.close(handle)
        self._mount = _root_mount("self")
        self._user = find_namespace("/proc/self", "user")

    def accept(self, listener: socket.socket) -> socket.socket | None:
        """The next client, non-blocking; None if there is none, or if it is not admitted."""
        try:
            client, _ = listener.accept()
        except OSError:  # it has left again, or there is no descriptor for it
            return None
        if not self.admits(client):
            client.close()
            return None
        client.settimeout(0)
        return client

    def admits(self, sock: socket.socket) -> bool:
        """Whether the peer of a connected socket is the owner's, in the same namespaces."""
        try:
            pid, uid, _ = credentials(sock)
            if uid not in (os.geteuid(), 0) or pid <= 0:
                return False
            handle = _open_peer(sock, pid)
        except OSError:
            return False
        try:
            # Read last: as long as the peer exists, no other process has its pid.
            return self._is_home(str(pid), handle) and not _has_ended(handle)
        except (OSError, ValueError):
            return False
        finally:
            os.close(handle)

    def _is_home(self, pid: str, handle: int) -> bool:
        depth = _pid_depth(handle)
        if depth == 0 or depth != self._depth:
            return False
        if not self.is_strict:
            return True
        # A keeper in a user namespace of its own is not shown its maker's processes everywhere
        # (`hidepid`), nor their user namespace, but always what is below it.
        mount, user = _root_mount(pid), find_namespace(f"/proc/{pid}", "user")
        return mount in (None, self._mount) and user in (None, self._user)


def peer_pid(sock: socket.socket) -> int | None:
    """The process that made the other end of a connected socket; None if it cannot be seen."""
    try:
        return credentials(sock)[0] or None
    except OSError:
        return None


def credentials(sock: socket.socket) -> tuple[int, int, int]:
    """The process, the user and the group that made the other end of a connected socket."""
    found: tuple[int, int, int] = _PEER.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    )
    return found


def _open_peer(sock: socket.socket, pid: int) -> int:
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:  # before Linux 6.5
        return os.pidfd_open(pid)


def _has_ended(handle: int) -> bool:
    """Not with `select`, which refuses descriptors above 1023: a daemon may have thousands."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def _pid_depth(handle: int) -> int:
    """In how many nested pid namespaces a process is, as seen from here; 0 if that is unknown."""
    for line in _read(f"/proc/self/fdinfo/{handle}", _STATUS_BYTES).split(b"\n"):
        if line.startswith(b"NSpid:"):
            return len(line.split()) - 1
    return 0


def _root_mount(pid: str) -> bytes | None:
    """The number of the mount at `/`, which no two mount namespaces share; None if not shown."""
    try:
        listed = _read(f"/proc/{pid}/mountinfo", _MOUNTS_BYTES)
    except OSError:
        return None
    for line in listed.split(b"\n"):
        fields = line.split(b" ")
        if len(fields) > 4 and fields[4] == b"/":
            return fields[0]
    return None


def find_namespace(process: str, name: str) -> tuple[int, int] | None:
    """Identifies a namespace of a process, whose directory in a procfs is `process`."""
    try:
        found = os.stat(f"{process}/ns/{name}")
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _read(path: str, limit_bytes: int) -> bytes:
    with Opened(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        found = bytearray()
        while len(found) < limit_bytes and (piece := os.read(fd, 1 << 16)):
            found += piece
        return bytes(found)
