"""A capsule that is paused, or copied, does nothing meanwhile, whatever it has prepared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from busy import TIMERS, Counter
from persons import as_both

HELD = ("frozen by cgroup", "held by ptrace")


class Inside(Counter):
    """In the workspace of a capsule, seen through its view."""

    def __init__(self, person):
        self.path = Path(person.atoll("path", "x").stdout.strip()) / "counter"


@pytest.fixture
def clock(tmp_path):
    """A plain process with the same timers; SIGSTOP does not hold it (`keeper/test_hold.py`)."""
    counter = Counter(tmp_path / "clock")
    process = subprocess.Popen([sys.executable, "-c", TIMERS, counter.path])
    yield counter
    process.kill()
    process.wait()


def pass_time(clock, wait_for):
    goal = clock.value + 250
    wait_for(lambda: clock.value >= goal, timeout_s=60, what="the clock goes on")


@as_both
def test_timers_do_not_undo_a_pause(person, clock, wait_for):
    person.atoll("new", "x")
    person.sh("x", "head -c 8 /dev/zero > counter")
    person.atoll("run", "-d", "x", "--", "python3", "-c", TIMERS, "counter")
    counter = Inside(person)
    wait_for(lambda: counter.value > 10, timeout_s=60, what="a count")
    assert person.answer("pause", "x")["processes"] >= 1
    held = counter.value
    pass_time(clock, wait_for)
    assert counter.value == held
    assert person.answer("snapshot", "x")["moment"] in HELD
    assert counter.value == held
    person.atoll("resume", "x")
    wait_for(lambda: counter.value > held, timeout_s=60, what="another count")
    # And of one that is busy: what was copied is of one moment.
    assert person.answer("snapshot", "x")["moment"] in HELD
    person.atoll("stop", "x", "--grace", "0")
    assert person.answer("snapshot", "x")["moment"] == "nothing runs"
