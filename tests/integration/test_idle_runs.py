"""Idle runs are looked at rarely, and their limits hold all the same; what is asked inside dies
with whoever asked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest

from atoll.keeper import asking, lookout, tree
from atoll.keeper.looks import RARE_S
from persons import as_both

# Each process stays below what the kernel allows a single one: only together they are too much.
EATS_TOGETHER = """
import os, time
for _ in range(12):
    if os.fork() == 0:
        b = bytearray(b'x') * (16 << 20)
        time.sleep(600)
time.sleep(600)
"""
# One call each, and hardly any processor time.
TAKES_SPACE = """
import os, time
for number in range(4):
    fd = os.open(f'f{number}', os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, 19 << 20)
    os.close(fd)
time.sleep(600)
"""
WAITS = 'mkfifo go; read line < go; exec python3 -c "$1"'


def until(is_so, what):
    deadline = time.monotonic() + 60
    while not is_so():
        if time.monotonic() > deadline:
            pytest.fail(f"never: {what}")
        time.sleep(0.02)


def require_watched(person):
    person.sh("x", "true")
    if person.groups():
        pytest.skip("this user can make groups")


def lookout_of(person):
    """The process that watches idle runs."""
    try:
        with lookout.connect(str(person.home / "lookout")) as sock:
            sock.settimeout(30)
            return int(str(asking.ask(sock, {"ping": True})[0]["pid"]))
    except OSError:
        return None


def is_watching(pid):
    """Whether it keeps an eye on a process: it holds its `stat` open."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"/proc/{pid}/fd/{fd}").endswith("/stat"):
                return True
    return False


as_user = pytest.mark.parametrize("person", ["user"], indirect=True)
"""Root can make groups, and where the kernel holds memory it kills single processes."""


@as_user
def test_a_run_that_wakes_up_is_held_to_its_limits(person):
    person.atoll("new", "x", "--limit", "memory=160M", "--limit", "disk=1G")
    require_watched(person)
    person.atoll("run", "-d", "x", "--", "sh", "-c", WAITS, "sh", EATS_TOGETHER)
    watcher = lookout_of(person)
    assert watcher is not None
    until(lambda: is_watching(watcher), "the run is idle")
    person.sh("x", "echo go > go")
    person.atoll("wait", "x", "2", check=False)
    assert person.outcome("x", 2)["reason"] == "oom"


@as_both
def test_an_idle_run_is_held_to_its_disk_limit(person):
    """Python is there before the run is idle: to start it would be a change."""
    person.atoll("new", "x", "--limit", "disk=20M")
    script = f"open('go')\n{TAKES_SPACE}"
    person.atoll(
        "run", "-d", "x", "--", "sh", "-c", 'mkfifo go; exec python3 -c "$1"', "sh", script
    )
    until(lambda: (watcher := lookout_of(person)) and is_watching(watcher), "the run is idle")
    began = time.monotonic()
    person.sh("x", "echo > go")
    person.atoll("wait", "x", "1", check=False)
    assert person.outcome("x", 1)["reason"] == "disk"
    assert time.monotonic() < began + RARE_S / 2


@as_user
def test_limits_hold_when_the_lookout_is_killed(person):
    person.atoll("new", "x", "--limit", "memory=160M", "--limit", "disk=1G")
    require_watched(person)
    person.atoll("run", "-d", "x", "--", "sh", "-c", WAITS, "sh", EATS_TOGETHER)
    watcher = lookout_of(person)
    until(lambda: is_watching(watcher), "the run is idle")
    os.kill(watcher, signal.SIGKILL)
    person.sh("x", "echo go > go")
    person.atoll("wait", "x", "2", check=False)
    assert person.outcome("x", 2)["reason"] == "oom"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("level", ["clone", "sandbox"])
def test_a_question_dies_with_its_asker(person, level, number):
    person.atoll("new", "x", "--level", level)
    person.sh("x", "rm .git/index; mkfifo .git/index")
    cli = person.popen("diff", "x")
    asked = []

    def is_asking():
        asked[:] = [pid for pid in tree.descendants(cli.pid) if _name(pid) in ("bwrap", "git")]
        return asked

    with cli:
        try:
            until(is_asking, "git inside")
        except BaseException:
            cli.kill()
            raise
        cli.send_signal(number)
        cli.communicate(timeout=60)
    until(lambda: not any(map(_lives, asked)), "the end of git")


def _lives(pid):
    """Its new parent may take a while to reap it."""
    process = tree.find_process(pid)
    return process is not None and not process.is_dead


def _name(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""
