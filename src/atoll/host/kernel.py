"""What the rest needs of the kernel; the libc calls themselves are the keeper's."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from atoll.keeper.calls import CLONE_NEWNS, CLONE_NEWUSER, sync_filesystem, unshare

CLONE_NEWNET = 0x40000000
_FAR = ("198.51.100.1", 443)
"""An address that nobody has; no packet to it leaves a network without interfaces."""
_CAUGHT_S = 2.0

__all__ = [
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWUSER",
    "can_let_out",
    "can_unshare",
    "sync_filesystem",
    "unshare",
]


def can_unshare(flags: int) -> str | None:
    """Tries to make the namespaces in a child; None if it worked, else what the kernel said."""
    return _tried(lambda: unshare(flags))


def can_let_out() -> str | None:
    """Tries, in a network made for it, whether what leaves can be caught; as `can_unshare`."""
    from atoll.keeper import networks  # noqa: PLC0415 - only for those who ask

    def catch() -> None:
        unshare(CLONE_NEWNET | (CLONE_NEWUSER if os.geteuid() else 0))
        networks.bring_up("allow")
        with socket.create_server(("127.0.0.1", networks.CAUGHT_PORT)) as listener:
            listener.settimeout(_CAUGHT_S)
            socket.create_connection(_FAR, timeout=_CAUGHT_S).close()
            listener.accept()[0].close()

    return _tried(catch)


def _tried(act: Callable[[], None]) -> str | None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            act()
            os.write(writer, b"ok")
        except OSError as error:
            os.write(writer, (error.strerror or str(error)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        said = stream.read().decode()
    os.waitpid(pid, 0)
    return None if said == "ok" else said or "the probe died"
