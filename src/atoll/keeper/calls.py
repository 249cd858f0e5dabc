"""The keeper's own few libc calls: the only ctypes in the package."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _raise_errno(call: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{call}: {os.strerror(number)}")


def _prctl(option: int, value: ctypes.c_ulong | ctypes.c_char_p) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(ctypes.c_int(option), value, zero, zero, zero) != 0:
        _raise_errno(f"prctl({option})")


def unshare(flags: int) -> None:
    if _libc.unshare(ctypes.c_int(flags)) != 0:
        _raise_errno("unshare")


def enter_namespace(fd: int) -> None:
    if _libc.setns(ctypes.c_int(fd), ctypes.c_int(0)) != 0:
        _raise_errno("setns")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """`mount(2)`; an empty kind or option is a null pointer."""
    if (
        _libc.mount(
            ctypes.c_char_p(os.fsencode(source)),
            ctypes.c_char_p(os.fsencode(target)),
            ctypes.c_char_p(kind.encode() or None),
            ctypes.c_ulong(flags),
            ctypes.c_char_p(os.fsencode(options) or None),
        )
        != 0
    ):
        _raise_errno(f"mount on `{target}`")


def become_subreaper() -> None:
    """From now on orphans among the descendants become children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))


def die_with_parent(signal_number: int, parent_pid: int) -> bool:
    """Ask for a signal when the parent dies; False if it had died already."""
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number))
    return os.getppid() == parent_pid


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show; the kernel keeps 15 bytes."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()))


def sync_filesystem(place: str | os.PathLike[str]) -> None:
    """Has everything on the filesystem of a directory written to its disk."""
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(ctypes.c_int(fd)) != 0:
            _raise_errno("syncfs")
    finally:
        os.close(fd)
