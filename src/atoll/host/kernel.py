"""What the rest needs of the kernel; the libc calls themselves are the keeper's."""

from __future__ import annotations

import os

from atoll.keeper.calls import CLONE_NEWNS, CLONE_NEWUSER, sync_filesystem, unshare

CLONE_NEWNET = 0x40000000

__all__ = [
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWUSER",
    "can_unshare",
    "sync_filesystem",
    "unshare",
]


def can_unshare(flags: int) -> str | None:
    """Tries to make the namespaces in a child; None if it worked, else what the kernel said."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            unshare(flags)
            os.write(writer, b"ok")
        except OSError as error:
            os.write(writer, (error.strerror or str(error)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        said = stream.read().decode()
    os.waitpid(pid, 0)
    return None if said == "ok" else said or "the probe died"
