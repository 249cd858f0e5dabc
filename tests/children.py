"""Functions run in a child process: as another user, with private mounts. And a thread that
exchanges names, as a hostile agent does while its tree is read.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import threading
import traceback
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from atoll.host.kernel import CLONE_NEWNS, CLONE_NEWUSER, unshare
from atoll.keeper.calls import enter_namespace, mount
from persons import open_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NOBODY = 65_534
MS_REC, MS_PRIVATE = 0x4000, 0x40000
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_PR_SET_DUMPABLE = 4


def in_child(
    function: Callable[[], Any],
    *,
    user: int | None = None,
    mounts: bool = False,
    interpreter: bool = False,
) -> Any:
    """What `function` returns in a child.

    As root the child becomes `user`, if given; with `interpreter`, where that user can start this
    interpreter. With `mounts` it has mounts of its own, without root in a user namespace.
    """
    reachable = open_namespace() if interpreter and user and os.geteuid() == 0 else None
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # The child runs nothing but the function, and ends without unwinding.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            if reachable is not None:
                enter_namespace(reachable)
            _become(user, mounts=mounts)
            answer = ("ok", function())
        except BaseException:  # noqa: BLE001 - reported to the parent, which fails
            answer = ("failed", traceback.format_exc())
        with os.fdopen(writer, "wb") as stream:
            pickle.dump(answer, stream)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        kind, value = pickle.load(stream)
    os.waitpid(pid, 0)
    if kind != "ok":
        pytest.fail(value)
    return value


def _become(user: int | None, *, mounts: bool) -> None:
    if user is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    if mounts and os.geteuid() != 0:
        uid, gid = os.geteuid(), os.getegid()
        # A process that changed its user may not write its own maps.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        unshare(CLONE_NEWUSER | CLONE_NEWNS)
        maps = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
        for name, text in maps.items():
            with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
                file.write(text)
    elif mounts:
        unshare(CLONE_NEWNS)
    if mounts:
        mount("none", "/", "", MS_REC | MS_PRIVATE)


@contextmanager
def exchanging(one: Path, other: Path) -> Iterator[None]:
    """Exchanges two names in a loop, which is under way when the block begins."""
    libc = ctypes.CDLL(None, use_errno=True)
    stop, busy = threading.Event(), threading.Event()
    names = os.fsencode(one), os.fsencode(other)
    failed = []

    def work() -> None:
        count = 0
        while not stop.is_set():
            if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
                failed.append(os.strerror(ctypes.get_errno()))
                stop.set()
            count += 1
            if count > 100 or failed:
                busy.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        busy.wait()
        assert failed == []
        yield
    finally:
        stop.set()
        thread.join()
    assert failed == []
