"""Idle runs: their own processes found by their pid namespace, watched by one process for all."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from atoll.keeper import idle_monitor, process_tree, requests, run_processes, wire
from atoll.keeper.disk_budget import Free
from atoll.keeper.idle_monitor import CHECK_S, IdleMonitor, IdleRun, connect, fork_idle_monitor
from atoll.keeper.limit_checks import RARE_S, LimitChecks
from atoll.keeper.limits import RunLimits
from atoll.keeper.loop import Loop
from atoll.keeper.run_processes import Members, find_own_proc, numbers
from atoll.keeper.watchdog import Activity, Watchdog
from atoll.model.enclosure import Limits
from present import present

OBEYS = """
import os, sys, time
print("ready", flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "fork" and os.fork() == 0:
        time.sleep(600)
    if word == "work":
        until = time.process_time() + 0.2
        while time.process_time() < until:
            pass
    if word == "grow":
        kept = bytearray(b"x") * (40 << 20)
    print(word, flush=True)
"""
FAR = 1 << 40


def until(is_so):
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Inside:
    """A program behind bwrap, which executes commands of the test."""

    def __init__(self):
        self.shell = subprocess.Popen(
            ["bwrap", "--unshare-user", "--unshare-pid", "--bind", "/", "/", "--dev", "/dev",
             "--proc", "/proc", "--die-with-parent", "--", sys.executable, "-c", OBEYS],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert present(self.shell.stdout).readline() == "ready\n"

    def tell(self, word):
        print(word, file=self.shell.stdin, flush=True)
        assert present(self.shell.stdout).readline() == f"{word}\n"

    def end(self):
        self.shell.kill()
        self.shell.communicate(timeout=30)


@pytest.fixture
def inside():
    if shutil.which("bwrap") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("bwrap is missing")
        pytest.skip("bwrap is missing")
    made = Inside()
    yield made
    made.end()


@pytest.fixture
def proc(inside):
    found = find_own_proc(inside.shell.pid)
    assert found is not None
    yield found
    os.close(found)


def activity(proc):
    place = f"/proc/self/fd/{proc}"
    return Activity([present(process_tree.find_process(pid, place)) for pid in numbers(proc)])


def marks(seen, *, pages=FAR):
    return {
        "pids": sorted(seen.pids),
        "ticks": seen.ticks,
        "tasks": seen.tasks,
        "resident_pages": pages,
    }


# The processes of one run


def test_only_the_processes_of_the_run_are_listed(inside, proc):
    assert len(numbers(proc)) == 1
    inside.tell("fork")
    listing = Members(inside.shell.pid)
    pids, place = listing.list()
    assert len(pids) == 2
    assert all(process_tree.find_process(pid, place) for pid in pids)
    listing.close()
    assert sorted(numbers(proc, pids)) == sorted(pids) == sorted(numbers(proc))


def test_without_a_namespace_of_its_own_everything_below_is_listed():
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            assert find_own_proc(os.getpid()) is None
            pids, place = Members(os.getpid()).list()
            assert place == "/proc"
            assert child.pid in pids
        finally:
            child.kill()


def test_a_listing_from_another_place_is_checked(proc, monkeypatch):
    """A kernel whose procfs had its entries elsewhere is read from the start."""
    known = numbers(proc)
    monkeypatch.setattr(run_processes, "_PROCESSES", 1 << 20)
    assert numbers(proc, known) == known


def test_a_look_reads_nothing_of_other_processes(inside, proc, monkeypatch):
    opened = []
    real = os.open

    def counted(path, *args, **options):
        opened.append(path)
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", counted)
    listing = Members(inside.shell.pid)
    listing.proc = proc
    pids, place = listing.list()
    watch = Watchdog(Limits(memory_bytes=FAR, pids=100))
    assert watch.check(pids, place) is None
    assert watch.tasks == 1
    assert opened
    assert all(str(path).startswith((place, f"/proc/{os.getpid()}/")) for path in opened)


# One that is idle


@pytest.mark.parametrize("word", ["fork", "work"])
def test_what_a_run_does_is_a_change(inside, proc, word):
    watched = IdleRun(proc, marks(activity(proc)))
    assert not watched.has_changed(may_have_forked=True)
    inside.tell(word)
    assert watched.has_changed(may_have_forked=True)
    watched.close()


def test_memory_beyond_the_mark_is_a_change(inside, proc):
    seen = activity(proc)
    raw = marks(seen, pages=seen.resident_pages + 1000)
    raw["ticks"] += 1000
    watched = IdleRun(proc, raw)
    assert not watched.has_changed(may_have_forked=False)
    inside.tell("grow")
    assert watched.has_changed(may_have_forked=False)
    watched.close()


def test_an_end_is_a_change(inside, proc):
    watched = IdleRun(proc, marks(activity(proc)))
    inside.end()
    until(lambda: watched.has_changed(may_have_forked=False))
    watched.close()
    until(lambda: numbers(proc) == [])


@pytest.fixture
def disk(tmp_path):
    handle = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield handle
    os.close(handle)


@pytest.mark.parametrize("mark", ["free_bytes", "free_entries"])
def test_too_little_free_space_is_a_change(proc, disk, mark):
    raw = {**marks(activity(proc)), "free_bytes": 0, "free_entries": 0}
    watched = IdleRun(proc, raw, disk)
    assert not watched.is_short_of_disk({})
    watched.close()
    watched = IdleRun(proc, raw | {mark: 1 << 62}, disk)
    assert watched.is_short_of_disk({})
    watched.close()


def test_what_others_free_does_not_hide_what_a_run_takes(proc, disk):
    """A run that may take 100 bytes more, beside others who free 1,000."""
    raw = {**marks(activity(proc)), "free_bytes": 900, "free_entries": 0}
    watched = IdleRun(proc, raw, disk)
    device = os.fstat(disk).st_dev
    told = [
        watched.is_short_of_disk({device: Free(size_bytes, 10)})
        for size_bytes in (1000, 950, 2000, 1901, 1899)
    ]
    assert told == [False, False, False, False, True]
    watched.close()


def test_a_filesystem_is_asked_once_for_all_runs(tmp_path, proc, disk, monkeypatch):
    raw = {**marks(activity(proc)), "free_bytes": 0, "free_entries": 0, "ticks": FAR}
    asked = []
    real = os.statvfs

    def counted(place):
        asked.append(place)
        return real(place)

    with wire.listen(tmp_path, idle_monitor.SOCKET, socket.SOCK_SEQPACKET) as listener:
        made = IdleMonitor(str(tmp_path), listener)
        made._watched = {number: IdleRun(proc, raw, disk) for number in range(50)}
        monkeypatch.setattr(os, "statvfs", counted)
        made._check()
        assert len(asked) == 1
        assert len(made._watched) == 50
        made._check()
        assert len(asked) == 2
        for number in range(50):
            made._release(number)


def test_many_processes_are_never_idle():
    processes = [present(process_tree.find_process(os.getpid())) for _ in range(65)]
    for number, process in enumerate(processes):
        process.pid = number + 1
    assert Activity(processes[:64]).is_idle_since(Activity(processes[:64]))
    assert not Activity(processes).is_idle_since(Activity(processes))


# The process that watches


@pytest.fixture
def station(tmp_path):
    """The directory of a idle monitor that lives, which is ended."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            fork_idle_monitor(str(tmp_path))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    yield tmp_path
    end_idle_monitor(tmp_path)


def end_idle_monitor(directory):
    with contextlib.suppress(FileNotFoundError, ConnectionError), connect(str(directory)) as sock:
        requests.send(sock, {"ping": True})
        os.kill(int(hear(sock)["pid"]), signal.SIGKILL)
        with contextlib.suppress(ConnectionError):
            assert sock.recv(1) == b""


def hear(sock):
    sock.settimeout(30)
    return requests.receive(sock)[0]


def test_a_change_is_reported_once_and_the_run_let_go(station, inside, proc):
    with connect(str(station)) as sock:
        requests.send(sock, {"watch": marks(activity(proc))}, (proc,))
        assert hear(sock) == {"watching": True}
        inside.tell("work")
        assert hear(sock) == {"changed": True}
        # What it had done when it asked is no change.
        requests.send(sock, {"watch": marks(activity(proc))}, (proc,))
        assert hear(sock) == {"watching": True}
        inside.tell("fork")
        assert hear(sock) == {"changed": True}


def test_what_happened_before_it_was_watched_is_a_change(station, inside, proc):
    seen = marks(activity(proc))
    inside.tell("fork")
    with connect(str(station)) as sock:
        requests.send(sock, {"watch": seen}, (proc,))
        assert hear(sock) == {"changed": True}


def test_a_disk_without_numbers_is_refused(station, proc, disk):
    with connect(str(station)) as sock:
        requests.send(sock, {"watch": marks(activity(proc))}, (proc, disk))
        sock.settimeout(30)
        assert sock.recv(100) == b""


def test_there_is_one_per_directory(station):
    before = (station / idle_monitor.SOCKET).stat().st_ino
    fork_idle_monitor(str(station))
    assert (station / idle_monitor.SOCKET).stat().st_ino == before


@pytest.mark.parametrize("raw", [{}, {"pids": "x"}, {"pids": [1], "ticks": "many"}])
def test_nonsense_is_refused(station, proc, raw):
    with connect(str(station)) as sock:
        requests.send(sock, {"watch": raw}, (proc,))
        sock.settimeout(30)
        assert sock.recv(100) == b""


def test_it_ends_when_its_directory_is_gone(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    with wire.listen(place, idle_monitor.SOCKET, socket.SOCK_SEQPACKET) as listener:
        made = IdleMonitor(str(place), listener)
        later = made._used_at = time.monotonic() + idle_monitor._HOME_S
        assert not made._is_over(later)
        later = made._used_at = later + idle_monitor._HOME_S
        shutil.rmtree(place)
        assert made._is_over(later)


def test_it_ends_when_it_is_not_needed(station):
    until(lambda: not (station / idle_monitor.SOCKET).exists())


# The keeper's side


def rest(checks, loop, *, turns=200):
    """Looks as a keeper does, without the waits in between, until it may rest."""
    for _ in range(turns):
        assert checks.check(time.monotonic()) is None
        if checks.due_at > time.monotonic() + 2 * CHECK_S:
            return True
        loop.turn(0.01)
    return False


def test_a_keeper_rests_while_its_idle_run_is_watched(station, inside):
    loop = Loop()
    checks = LimitChecks(RunLimits(Limits(memory_bytes=FAR), {}), loop, str(station))
    checks.begin(time.monotonic())
    checks.members.shell = inside.shell.pid
    assert rest(checks, loop)
    assert checks.due_at > time.monotonic() + RARE_S / 2
    inside.tell("work")
    while checks.due_at > time.monotonic():
        loop.turn(30)
    assert rest(checks, loop)
    # And if the idle monitor dies, the keeper looks at once.
    end_idle_monitor(station)
    while checks.due_at > time.monotonic():
        loop.turn(30)
    assert not rest(checks, loop, turns=20)
    checks.end()


def test_a_keeper_wakes_up_when_its_disk_fills_without_processor_time(station, inside, tmp_path):
    upper = tmp_path / "upper"
    upper.mkdir()
    loop = Loop()
    checks = LimitChecks(
        RunLimits(Limits(disk_bytes=1 << 20, disk_root=str(upper)), {}), loop, str(station)
    )
    checks.begin(time.monotonic())
    checks.members.shell = inside.shell.pid
    assert rest(checks, loop)
    began = time.monotonic()
    # Much more than others may free meanwhile.
    with (upper / "large").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 256 << 20)
    try:
        while checks.due_at > time.monotonic():
            assert time.monotonic() < began + RARE_S / 2
            loop.turn(1)
        assert checks.check(time.monotonic()) == "disk"
    finally:
        (upper / "large").unlink()
        checks.end()


def test_a_keeper_without_an_idle_monitor_looks_by_itself(tmp_path, inside):
    loop = Loop()
    checks = LimitChecks(RunLimits(Limits(memory_bytes=FAR), {}), loop, str(tmp_path))
    checks.begin(time.monotonic())
    checks.members.shell = inside.shell.pid
    assert not rest(checks, loop, turns=20)
    checks.end()
