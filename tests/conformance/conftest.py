"""Stages: a real filesystem and a user, for a suite that a process of its own performs.

That process lives in its own mount and process namespaces, where there is root to make them: its
mounts are seen by nobody else, and all that it started goes with it, however it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from atoll.host import files
from atoll.keeper import calls
from persons import (
    GIT_CONFIG,
    MS_PRIVATE,
    MS_REC,
    PATH,
    ROOT,
    open_ways,
    ordinary_user,
    still_running,
)  # fmt: skip

CLONE_NEWPID = 0x20000000
PR_SET_DUMPABLE = 4
EXT4_MAGIC = 0xEF53
IMAGE_BYTES = 512 << 20
MAKERS = {
    "ext4": ("mkfs.ext4", "-q", "-F"),
    "xfs": ("mkfs.xfs", "-q", "-f", "-m", "reflink=1"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}


class Where(NamedTuple):
    """Which stage; `driver` is what the suite is performed for."""

    filesystem: str
    who: str
    driver: str = ""
    level: str = "clone"


def lack(reason: str) -> NoReturn:
    """A skip on a laptop, a failure in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="class")
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """The tests of a class that asks for it are performed on it, one after the other."""
    where = Where(*request.param)
    if where.who == "root" and os.geteuid() != 0:
        pytest.skip("only root can try what root may do")
    with open_stage(where, request.cls) as made:
        yield made


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    made = pyfuncitem.funcargs.get("stage")
    if not isinstance(made, Stage):
        return None
    made.perform(pyfuncitem.originalname)
    return True


class Stage:
    """The near end: says which test is next and hears how it went."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def perform(self, name: str) -> None:
        how, said = self.ask(name)
        if how == "skip":
            lack(said)
        if how != "good":
            pytest.fail(said, pytrace=False)

    def ask(self, name: str) -> tuple[str, str]:
        self._stream.write(json.dumps(name) + "\n")
        self._stream.flush()
        line = self._stream.readline()
        return tuple(json.loads(line)) if line else ("died", "the process on the stage has died")


@contextlib.contextmanager
def open_stage(where: Where, suite: type) -> Iterator[Stage]:
    box = Path(tempfile.mkdtemp(prefix="atoll-stage-"))
    box.chmod(0o755)
    (box / "place").mkdir()
    try:
        image = find_image(where.filesystem, box)
        ours, theirs = socket.socketpair()
        with ours, warnings.catch_warnings():
            # The child runs nothing of ours but the stage, and ends without unwinding.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
            if pid == 0:
                ours.close()
                leave(lambda: raise_stage(where, suite, box, image, theirs))
            theirs.close()
            with ours.makefile("rw", encoding="utf-8") as stream, ended(pid):
                made = Stage(stream)
                how, said = made.ask("")
                if how == "skip":
                    lack(said)
                assert how == "good", said
                yield made
                how, said = made.ask("end")
                assert how == "good", said
    finally:
        # It copes with what tests make: directories that forbid everything, trees of any depth.
        files.remove_tree(box, within=box.parent)


@contextlib.contextmanager
def ended(pid: int) -> Iterator[None]:
    """Sees that a child is gone afterwards; what it started in its namespace goes with it."""
    try:
        yield
    finally:
        deadline = time.monotonic() + 10
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                deadline += 3600
            time.sleep(0.01)


def find_image(filesystem: str, box: Path) -> Path | None:
    """An image to mount; None where the temporary directory is of that kind by itself."""
    if filesystem == "ext4" and filesystem_magic(box) == EXT4_MAGIC:
        return None
    maker, *flags = MAKERS[filesystem]
    if os.geteuid() != 0:
        lack(f"only root can mount {filesystem}")
    if shutil.which(maker, path=PATH) is None:
        lack(f"needs `{maker}`, which is not installed")
    if not Path("/dev/loop-control").exists():
        lack("there are no loop devices")
    image = box / "image"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run([maker, *flags, image], env={"PATH": PATH}, check=True, capture_output=True)
    return image


def filesystem_magic(place: Path) -> int:
    answer = subprocess.run(
        ["stat", "--file-system", "--format=%t", place], check=True, capture_output=True
    )
    return int(answer.stdout, 16)


def leave(body: Callable[[], None]) -> NoReturn:
    """Ends a forked process with the end of its body."""
    code = 1
    try:
        body()
        code = 0
    except BaseException:  # noqa: BLE001 - a forked process must not come back to pytest
        traceback.print_exc()
    finally:
        os._exit(code)


def raise_stage(
    where: Where, suite: type, box: Path, image: Path | None, theirs: socket.socket
) -> None:
    """Mounts, closes the namespaces behind itself and waits for what happens in there."""
    place = box / "place"
    if os.geteuid() != 0:
        perform(where, suite, place, theirs)
        return
    calls.die_with_parent(signal.SIGKILL, os.getppid())
    try:
        calls.unshare(calls.CLONE_NEWNS)
        calls.mount("none", "/", "", MS_REC | MS_PRIVATE)
        if image is not None:
            mount_image(where.filesystem, image, place)
        calls.unshare(CLONE_NEWPID)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or error
        answer(theirs, "skip", f"no stage for {where.filesystem}: {said}")
        return
    first = os.fork()
    if first == 0:
        leave(lambda: be_first(where, suite, place, theirs))
    theirs.close()
    os.waitpid(first, 0)


def mount_image(filesystem: str, image: Path, place: Path) -> None:
    subprocess.run(
        ["mount", "-t", filesystem, "-o", "loop", image, place],
        env={"PATH": PATH}, check=True, capture_output=True,
    )  # fmt: skip


def be_first(where: Where, suite: type, place: Path, theirs: socket.socket) -> None:
    """Process 1 of the namespace: buries the dead until the one that performs is among them.

    Its end is the end of all that lives in there, and the last of the mounts goes with it.
    """
    calls.die_with_parent(signal.SIGKILL, 0)
    calls.mount("proc", "/proc", "proc", 0)
    if where.who == "user":
        open_ways(ROOT, Path(sys.prefix), Path(sys.base_prefix))
    actor = os.fork()
    if actor == 0:
        leave(lambda: perform(where, suite, place, theirs))
    theirs.close()
    while os.wait()[0] != actor:
        continue


def perform(where: Where, suite: type, place: Path, theirs: socket.socket) -> None:
    """The far end: becomes who is wanted, then performs what is asked for."""
    become(where, place)
    suite.driver, suite.level = where.driver, where.level  # type: ignore[attr-defined]
    suite.root, suite.where = place, where  # type: ignore[attr-defined]
    with theirs, theirs.makefile("r", encoding="utf-8") as asked:
        while (name := json.loads(asked.readline() or '"end"')) != "end":
            answer(theirs, *(perform_one(suite, name) if name else ("good", "")))
        answer(theirs, *finish(suite, place))


def become(where: Where, place: Path) -> None:
    if os.geteuid() == 0 and where.who == "user":
        user = ordinary_user()
        os.chown(place, user.pw_uid, user.pw_gid)
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        # As if it had been started by that user: else what /proc tells of it is root's.
        calls._prctl(PR_SET_DUMPABLE, ctypes.c_ulong(1))
    os.umask(0o022)
    (place / "gitconfig").write_text(GIT_CONFIG, encoding="utf-8")
    (place / "owner").mkdir()
    os.environ.clear()
    os.environ.update(
        {
            "PATH": PATH,
            "HOME": str(place / "owner"),
            "LANG": "C.UTF-8",
            "ATOLL_DAEMON": "off",
            "GIT_CONFIG_GLOBAL": str(place / "gitconfig"),
            "GIT_CONFIG_NOSYSTEM": "1",
        }
    )
    os.chdir(place)


def perform_one(suite: type, name: str) -> tuple[str, str]:
    try:
        getattr(suite(), name)()
    except pytest.skip.Exception as reason:
        return "skip", str(reason)
    except BaseException:  # noqa: BLE001 - told to the other end, which fails
        return "bad", traceback.format_exc()
    return "good", ""


def finish(suite: type, place: Path) -> tuple[str, str]:
    """Ends what the suite shares, and sees that nothing is left running."""
    end = getattr(suite, "end", None)
    how, said = ("good", "") if end is None else perform_one(suite, "end")
    deadline = time.monotonic() + 15
    while left := still_running(place):
        if time.monotonic() > deadline:
            return "bad", f"{said}\nstill running: {left}"
        time.sleep(0.05)
    remove_groups(place / "home")
    return how, said


def remove_groups(home: Path) -> None:
    """Those that limited the capsules which the suite leaves in its home: that goes as a whole."""
    prefix = f"{zlib.crc32(os.fsencode(home)):08x}-"
    for path, names, _ in os.walk("/sys/fs/cgroup"):
        for name in names:
            if name.startswith(prefix):
                os.rmdir(f"{path}/{name}")


def answer(theirs: socket.socket, how: str, said: str) -> None:
    theirs.sendall(json.dumps([how, said]).encode() + b"\n")
