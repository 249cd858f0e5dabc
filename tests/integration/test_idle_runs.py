"""Idle runs are looked at rarely, and their limits hold all the same; what is asked inside dies
with whoever asked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest

from atoll.keeper import idle_monitor, process_tree, requests
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


def idle_monitor_of(person):
    """The process that watches idle runs."""
    try:
        with idle_monitor.connect(str(person.home / "lookout")) as sock:
            sock.settimeout(30)
            return int(str(requests.ask(sock, {"ping": True})[0]["pid"]))
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
    watcher = idle_monitor_of(person)
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
    until(lambda: (watcher := idle_monitor_of(person)) and is_watching(watcher), "the run is idle")
    # It may be ended before the shell has written all.
    person.atoll("run", "x", "--", "sh", "-c", "echo > go", check=False)
    person.atoll("wait", "x", "1", check=False)
    assert person.outcome("x", 1)["reason"] == "disk"


@as_user
def test_limits_hold_when_the_idle_monitor_is_killed(person):
    person.atoll("new", "x", "--limit", "memory=160M", "--limit", "disk=1G")
    require_watched(person)
    person.atoll("run", "-d", "x", "--", "sh", "-c", WAITS, "sh", EATS_TOGETHER)
    watcher = idle_monitor_of(person)
    until(lambda: is_watching(watcher), "the run is idle")
    os.kill(watcher, signal.SIGKILL)
    person.sh("x", "echo go > go")
    person.atoll("wait", "x", "2", check=False)
    assert person.outcome("x", 2)["reason"] == "oom"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("level", ["clone", "sandbox"])
def test_a_question_dies_with_its_asker(person, level, number):
    """A hook of the project's that does not end."""
    person.atoll("new", "x", "--level", level)
    hook = "printf '#!/bin/sh\\nexec sleep 600.25\\n' > .git/hooks/pre-commit"
    person.sh("x", f"{hook}; chmod +x .git/hooks/pre-commit; echo 1 > f")
    before = _sleeping()
    with person.popen("commit", "x", "-m", "one") as cli:
        try:
            until(lambda: _sleeping() - before, "the hook inside")
            asked = _sleeping() - before
            cli.send_signal(number)
            cli.communicate(timeout=60)
        finally:
            cli.kill()
    until(lambda: not asked & _sleeping(), "the end of the hook")


def _sleeping():
    """All processes that sleep for so long, as pairs of number and start."""
    found = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
            process = process_tree.find_process(int(name))
            if file.read() == b"sleep\x00600.25\x00" and process is not None:
                found.add(process.identity)
    return found
