"""What the kernel counts per user or per machine: one capsule gets a share, not all of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from atoll.keeper import user_quotas
from persons import as_both, require

TAKES_INOTIFY = """
import ctypes
libc = ctypes.CDLL(None)
count = 0
while count < 5000 and libc.inotify_init() >= 0:
    count += 1
print(count, flush=True)
"""
TAKES_PTYS = """
import os
held = []
try:
    while len(held) < 600:
        held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
except OSError:
    pass
print(len(held), flush=True)
"""
INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")


@pytest.mark.parametrize("person", ["user"], indirect=True)
def test_inotify_instances_of_a_capsule_are_a_share(person):
    """All capsules of an ordinary user count as that user."""
    require("python3")
    whole = int(INSTANCES.read_text())
    person.atoll("new", "x")
    taken = int(person.sh("x", f"python3 -c '{TAKES_INOTIFY}'"))
    assert 8 <= taken <= user_quotas.share_of(whole) < whole
    # Control: what is no capsule is not limited to a share.
    assert int(person.run(sys.executable, "-c", TAKES_INOTIFY).stdout) > user_quotas.share_of(whole)


@pytest.mark.parametrize("person", ["user"], indirect=True)
def test_runs_of_a_capsule_share_one_share(person):
    require("python3")
    person.atoll("new", "x")
    holds = f"{TAKES_INOTIFY}\nimport time\nopen('taken', 'w').close()\ntime.sleep(600)"
    person.atoll("run", "-d", "x", "--", "python3", "-c", holds)
    wait = "until test -e taken; do sleep 0.05; done"
    assert int(person.sh("x", f"{wait}; python3 -c '{TAKES_INOTIFY}'")) == 0
    # Another capsule and the user's own programs still get theirs.
    person.atoll("new", "y")
    assert int(person.sh("y", f"python3 -c '{TAKES_INOTIFY}'")) > 8
    assert int(person.run(sys.executable, "-c", TAKES_INOTIFY).stdout) > 8
    person.atoll("stop", "x", "--grace", "0")


@as_both
def test_pseudo_terminals_of_a_capsule_are_limited(person):
    require("python3")
    person.atoll("new", "x")
    assert int(person.sh("x", f"python3 -c '{TAKES_PTYS}'")) == 256
    # Control: outside, only the machine's own limit holds.
    if person.is_us:
        assert int(person.run(sys.executable, "-c", TAKES_PTYS).stdout) == 600
    spawned = "import pty, sys; sys.exit(pty.spawn(['tty']))"
    assert "/dev/pts/" in person.sh("x", f'python3 -c "{spawned}"')


def test_share():
    assert user_quotas.share_of(128) == 32
    assert user_quotas.share_of(20) == 16
    assert user_quotas.share_of(4) == 4
    for _, value in user_quotas.resource_limits():
        assert value > 0
