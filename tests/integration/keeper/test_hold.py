"""A hold holds: whatever timers, threads and forks a run has, it does nothing until released."""

from __future__ import annotations

import os
import signal
import struct
import subprocess

import pytest

from atoll.keeper import tree
from atoll.keeper.hold import NOTHING, PTRACE
from atoll.keeper.wire import Kind

# Each counts in eight bytes of a file that is mapped: progress that anybody can see.
HEAD = """
import ctypes, mmap, os, signal, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
file = open(sys.argv[1], "r+b")
memory = mmap.mmap(file.fileno(), 8)
def count():
    memory[:8] = struct.pack("Q", struct.unpack("Q", memory[:8])[0] + 1)
def forever():
    while True:
        count()
"""

TIMERS = (
    HEAD
    + """
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int),
                ("pad", ctypes.c_char * 48)]
signal.signal(signal.SIGCONT, lambda *_: None)
for index in range(64):
    timer = ctypes.c_void_p()
    event = Event(signo=signal.SIGCONT, notify=0)
    assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0
    times = (ctypes.c_long * 4)(0, 64_000_000, 0, 1_000_000 * (index + 1))
    assert libc.timer_settime(timer, 0, times, None) == 0
forever()
"""
)
THREADS = (
    HEAD
    + """
for _ in range(8):
    threading.Thread(target=forever).start()
while True:
    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
"""
)
FORKS = (
    HEAD
    + """
if os.fork():
    while True:
        signal.pause()
while True:
    count()
    if os.fork():
        os._exit(0)
"""
)
SPAWNS = (
    HEAD
    + """
for _ in range(4):
    os.fork()
while True:
    count()
    subprocess.run(["/bin/true"])
"""
)
VFORKED = (
    HEAD
    + """
# The parent waits in the kernel, where it cannot be interrupted, for a child that never ends.
libc.vfork.restype = ctypes.c_int
vfork = ctypes.PyDLL(None).vfork
if vfork() == 0:
    forever()
"""
)
DEAD_LEADER = (
    HEAD
    + """
threading.Thread(target=forever).start()
libc.syscall(60 if os.uname().machine == "x86_64" else 93, 0)
"""
)
STOPPED = (
    HEAD
    + """
if os.fork() == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
    forever()
forever()
"""
)
ZOMBIES = (
    HEAD
    + """
for _ in range(5):
    if os.fork() == 0:
        os._exit(0)
forever()
"""
)
PROGRAMS = {
    "timers": TIMERS, "threads": THREADS, "forks": FORKS, "spawns": SPAWNS, "vforked": VFORKED,
    "dead leader": DEAD_LEADER, "stopped": STOPPED, "zombies": ZOMBIES,
}  # fmt: skip


class Counter:
    def __init__(self, path):
        path.write_bytes(bytes(8))
        self.path = path

    @property
    def value(self):
        return struct.unpack("Q", self.path.read_bytes())[0]


def ask(client, kind, **value):
    known = len(client.errors)
    client.send_json(kind, value)
    client.read_until(lambda: len(client.errors) > known, "an answer")
    return client.errors[-1]


def grow(keep, counter, by=200):
    goal = counter.value + by
    keep.until(lambda: counter.value >= goal, f"{counter.path.name} grows")


@pytest.fixture
def control(python, tmp_path):
    """A plain process that goes on although SIGSTOP was sent to it; and a clock for the others."""
    counter = Counter(tmp_path / "control")
    process = subprocess.Popen([python, "-c", TIMERS, counter.path])
    yield process, counter
    process.kill()
    process.wait()


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_moves_while_held(keep, python, tmp_path, control, name):
    process, clock = control
    counter = Counter(tmp_path / "counter")
    keeper = keep(python, "-c", PROGRAMS[name], str(counter.path))
    grow(keeper, counter, 5)
    grow(keeper, clock)
    client = keeper.client("control")
    answer = ask(client, Kind.HOLD)
    assert answer["how"] == PTRACE, answer
    held = counter.value
    # The control: stopped by a signal, the same timers let it go on.
    for _ in range(20):
        process.send_signal(signal.SIGSTOP)
        grow(keeper, clock, 20)
    assert counter.value == held
    assert ask(client, Kind.HOLD)["how"] == PTRACE
    assert counter.value == held
    client.sock.close()
    grow(keeper, counter, 5)


def test_signals_that_arrive_meanwhile_are_not_lost(keep, python, tmp_path):
    counter = Counter(tmp_path / "counter")
    program = HEAD + "signal.signal(signal.SIGUSR1, lambda *_: count()); print('up', flush=True)\n"
    keeper = keep(python, "-c", program + "while True: signal.pause()", str(counter.path))
    main = keeper.wait_started()
    watcher = keeper.client("attach")
    watcher.read_until(lambda: b"up" in watcher.out, "up")
    client = keeper.client("control")
    assert ask(client, Kind.HOLD)["how"] == PTRACE
    os.kill(main, signal.SIGUSR1)
    assert counter.value == 0
    client.sock.close()
    keeper.until(lambda: counter.value == 1, "the signal arrives")


def test_a_pause_lasts_until_it_is_ended(keep, python, tmp_path, control):
    _, clock = control
    counter = Counter(tmp_path / "counter")
    keeper = keep(python, "-c", TIMERS, str(counter.path))
    grow(keeper, counter, 5)
    client = keeper.client("control")
    assert ask(client, Kind.HOLD, stays=True)["how"] == PTRACE
    client.sock.close()
    held = counter.value
    grow(keeper, clock, 1000)
    assert counter.value == held
    other = keeper.client("control")
    assert ask(other, Kind.RESUME)["processes"] == 1
    grow(keeper, counter, 5)


@pytest.mark.parametrize("stays", [False, True])
def test_a_held_run_can_be_stopped(keep, python, tmp_path, stays):
    counter = Counter(tmp_path / "counter")
    keeper = keep(python, "-c", FORKS, str(counter.path))
    grow(keeper, counter, 5)
    below = tree.processes_under(keeper.minder)
    client = keeper.client("control")
    assert ask(client, Kind.HOLD, stays=stays)["how"] == PTRACE
    other = keeper.client("control")
    other.send_json(Kind.STOP, {"grace_s": 0})
    if not stays:
        # What a snapshot relies on goes on only when that is over.
        held = counter.value
        assert ask(client, Kind.HOLD)["how"] == PTRACE
        assert counter.value == held
        client.sock.close()
    other.read_until(lambda: other.ended, "the end")
    assert other.ended["reason"] == "stopped"
    assert below


def test_a_run_that_waits_for_its_client_does_not_start_while_held(keep, python, tmp_path):
    keeper = keep(python, "-c", "print('ran')", foreground=True)
    client = keeper.client("control")
    assert ask(client, Kind.HOLD)["how"] == NOTHING
    foreground = keeper.client("foreground")
    assert ask(client, Kind.HOLD)["how"] == NOTHING
    assert keeper.status() is None or keeper.status().pid is None
    client.sock.close()
    foreground.read_until(lambda: foreground.ended, "the end")
    assert bytes(foreground.out) == b"ran\n"
