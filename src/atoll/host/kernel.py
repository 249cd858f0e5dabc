"""The only libc caller outside the keeper. Each call is wrapped in a few lines."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)


def _raise_errno(call: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{call}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    if _libc.unshare(ctypes.c_int(flags)) != 0:
        _raise_errno("unshare")


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
