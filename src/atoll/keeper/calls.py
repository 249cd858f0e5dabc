"""The keeper's own few libc calls: the only ctypes in the package."""

from __future__ import annotations

import ctypes
import os

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: ctypes.c_ulong | ctypes.c_char_p) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(ctypes.c_int(option), value, zero, zero, zero) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


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
