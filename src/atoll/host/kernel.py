"""Kernel features that the host side uses; the libc calls are in `atoll.keeper.calls`."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import socket
import struct
from collections.abc import Callable

from atoll.host.beneath import open_by_parts
from atoll.keeper.calls import CLONE_NEWNS, CLONE_NEWUSER, sync_filesystem, unshare

CLONE_NEWNET = 0x40000000
_FAR = ("198.51.100.1", 443)
"""An unassigned address; no packet to it leaves a network namespace without interfaces."""
_CAUGHT_S = 2.0

_SYS_OPENAT2 = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
# The errors of a kernel without the call, and of a seccomp filter that blocks it.
_NO_CALL = frozenset({errno.ENOSYS, errno.EPERM})

_IN_ONLYDIR, _IN_DONT_FOLLOW = 0x01000000, 0x02000000
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30}
_IOPRIO_IDLE = 3 << 13

_libc = ctypes.CDLL(None, use_errno=True)

__all__ = [
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWUSER",
    "can_intercept",
    "can_unshare",
    "idle_priority",
    "new_inotify",
    "open_beneath",
    "release_free_memory",
    "sync_filesystem",
    "unshare",
    "watch_directory",
]


def open_beneath(directory: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Opens a path below a directory that a hostile process may be changing.

    Follows no link, in any component, and reaches nothing outside the directory: links fail with
    ELOOP or ENOTDIR, paths that lead outside with EXDEV. The descriptor is close-on-exec. An empty
    path is the directory itself. Raises OSError.
    """
    flags |= os.O_CLOEXEC
    if not _has_openat2():
        return open_by_parts(directory, path or b".", flags, mode)
    return _openat2(directory, path or b".", flags, mode)


def _openat2(directory: int, path: bytes, flags: int, mode: int) -> int:
    if b"\0" in path:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    how = struct.pack("=QQQ", flags, mode, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS)
    handle: int = _libc.syscall(
        ctypes.c_long(_SYS_OPENAT2), ctypes.c_int(directory), ctypes.c_char_p(path),
        ctypes.c_char_p(how), ctypes.c_size_t(len(how)),
    )  # fmt: skip
    if handle < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return handle


@functools.cache
def _has_openat2() -> bool:
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(_openat2(root, b".", os.O_PATH | os.O_CLOEXEC, 0))
    except OSError as error:
        if error.errno not in _NO_CALL:
            raise
        return False
    finally:
        os.close(root)
    return True


def new_inotify() -> int:
    """A non-blocking inotify descriptor. Raises OSError."""
    return _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def watch_directory(inotify: int, path: str, mask: int) -> int:
    """Watches a directory without following links; returns the watch descriptor.

    Raises OSError, with ENOSPC if the user has no watches left.
    """
    place = os.fsencode(path)
    flags = ctypes.c_uint32(mask | _IN_ONLYDIR | _IN_DONT_FOLLOW)
    return _checked(_libc.inotify_add_watch(inotify, ctypes.c_char_p(place), flags))


def idle_priority() -> None:
    """Gives this process idle priority for CPU and disk."""
    os.nice(19)
    # Harmless where the I/O scheduler has no classes.
    number = _IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        _libc.syscall(ctypes.c_long(number), 1, 0, ctypes.c_int(_IOPRIO_IDLE))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def release_free_memory() -> None:
    """Returns free memory of libc's allocator to the system."""
    trim = getattr(_libc, "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(ctypes.c_size_t(0))


def can_unshare(flags: int) -> str | None:
    """Tries to unshare namespaces in a child; None on success, otherwise the kernel's error."""
    return _tried(lambda: unshare(flags))


def can_intercept() -> str | None:
    """Tries transparent interception in a new network namespace; returns as `can_unshare`."""
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
        result = stream.read().decode()
    os.waitpid(pid, 0)
    return None if result == "ok" else result or "the probe died"
