"""A worker that is stuck is replaced; one that is busy, slow or held by a debugger is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.daemon.heartbeat import MISSED, Heartbeat, Pulse, is_traced
from atoll.keeper import calls

PROGRAM = """
import asyncio, os, signal, sys
sys.path.append({source!r})
from atoll.daemon import main
from atoll.daemon.heartbeat import Heartbeat, Pulse

signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM, signal.SIGCHLD}})
heartbeat = Heartbeat()
reader, writer = os.pipe()

class Patient(Pulse):
    '''The control: a watcher that never gives a worker up.'''
    looks = 0
    def is_lost(self, **how):
        self.looks += super().is_lost(**how)
        if self.looks == 2:
            raise TimeoutError
        return False

async def get_stuck():
    heartbeat.start(asyncio.get_running_loop())
    os.read(reader, 1)

async def be_stopped():
    heartbeat.start(asyncio.get_running_loop())
    os.kill(os.getpid(), signal.SIGSTOP)

async def work_on():
    heartbeat.start(asyncio.get_running_loop())
    while heartbeat.count < 5:
        await asyncio.sleep(0.01)

worker = os.fork()
if not worker:
    main.enable_dump()
    asyncio.run({story}())
    os._exit(7)
try:
    print(main.watch(worker, {pulse}(heartbeat, most={most})))
except TimeoutError:
    print("alive" if os.waitpid(worker, os.WNOHANG) == (0, 0) else "ended")
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
"""


def watch(story: str, pulse: str = "Pulse", most: int = 2):
    source = str(Path(__file__).parents[3] / "src")
    program = PROGRAM.format(source=source, story=story, pulse=pulse, most=most)
    return subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True,
                          timeout=60, check=True)  # fmt: skip


def test_worker_that_is_stuck_is_ended_and_shows_where():
    done = watch("get_stuck")
    assert done.stdout == f"{-signal.SIGKILL}\n"
    assert "does not respond" in done.stderr
    assert "in get_stuck" in done.stderr


def test_worker_that_is_stopped_is_replaced_and_the_log_says_why():
    done = watch("be_stopped")
    assert done.stdout == f"{-signal.SIGKILL}\n"
    assert done.stderr.rstrip().endswith("is replaced: a signal has stopped it")


def test_without_a_heartbeat_it_would_stay():
    """The control of the test above."""
    assert watch("get_stuck", "Patient").stdout == "alive\n"


def test_worker_that_ends_by_itself_is_not_disturbed():
    done = watch("work_on", most=MISSED)
    assert (done.stdout, done.stderr) == ("7\n", "")


@pytest.fixture
def heartbeat():
    made = Heartbeat()
    yield made
    made.close()


class Clocked(Pulse):
    """With a clock of its own."""

    now_s = 0.0

    def _now_s(self) -> float:
        return self.now_s

    def look(self, after_s: float = 0.5, **how: bool) -> bool:
        self.now_s += after_s
        return self.is_lost(**how)


def test_every_beat_starts_the_count_again(heartbeat):
    pulse = Clocked(heartbeat)
    for _ in range(3):
        heartbeat.beat()
        assert not any(pulse.look() for _ in range(MISSED))
    assert pulse.look()


def test_first_beat_may_take_longer(heartbeat):
    pulse = Clocked(heartbeat)
    assert not any(pulse.look() for _ in range(3 * MISSED))
    assert any(pulse.look() for _ in range(10 * MISSED))


def test_intervals_in_which_the_watcher_did_not_run_do_not_count(heartbeat):
    pulse = Clocked(heartbeat)
    heartbeat.beat()
    assert not any(pulse.look(60.0) for _ in range(10 * MISSED))


def test_worker_in_a_debugger_is_not_given_up(heartbeat):
    pulse = Clocked(heartbeat)
    heartbeat.beat()
    assert not any(pulse.look(is_held=True) for _ in range(10 * MISSED))


def test_debugger_is_recognised():
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.read(reader, 1)
        os._exit(0)
    try:
        assert not is_traced(child)
        try:
            calls.seize_thread(child)
        except OSError as error:
            pytest.skip(f"needs ptrace: {error}")
        assert is_traced(child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
    assert not is_traced(child)
