"""A hold holds: whatever timers, threads and forks a run has, it does nothing until released."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

import pytest

from atoll.host.process import wait_until
from atoll.keeper import process_tree
from atoll.keeper.wire import NOTHING, PTRACE, UNVERIFIED, MessageKind
from busy import DEBUGGED, FORKS, HEAD, PROGRAMS, TIMERS, Counter


def ask(client, kind, **value):
    known = len(client.errors)
    client.send_json(kind, value)
    client.read_until(lambda: len(client.errors) > known, "an answer")
    return client.errors[-1]


def hold(client, **value):
    """As callers do: a busy machine may need more than one try to verify it."""
    for _ in range(20):
        answer = ask(client, MessageKind.HOLD, **value)
        if answer["how"] != UNVERIFIED:
            break
    return answer


def grow(keep, counter, by=200):
    goal = counter.value + by
    keep.until(lambda: counter.value >= goal, f"{counter.path.name} grows")


@contextlib.contextmanager
def counting(python, path):
    """A plain process that counts with the same timers, and is a clock for what is held."""
    counter = Counter(path)
    process = subprocess.Popen([python, "-c", TIMERS, counter.path])
    try:
        yield process, counter
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def clock(python, tmp_path):
    with counting(python, tmp_path / "clock") as (_, counter):
        yield counter


def test_control_timers_undo_a_stop(python, tmp_path):
    """SIGSTOP drops signals of timers that wait to be delivered, and these timers never fire again.
    When the machine is so busy that it hits all of them, another process is tried.
    """

    def goes_on(path):
        with counting(python, path) as (process, counter):
            assert wait_until(lambda: counter.value >= 5, timeout_s=60)
            process.send_signal(signal.SIGSTOP)
            goal = counter.value + 200
            return wait_until(lambda: counter.value >= goal, timeout_s=5)

    assert any(goes_on(tmp_path / f"control{number}") for number in range(20))


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_moves_while_held(keep, python, tmp_path, clock, name):
    counter = Counter(tmp_path / "counter")
    keeper = keep(python, "-c", PROGRAMS[name], str(counter.path))
    grow(keeper, counter, 5)
    grow(keeper, clock)
    client = keeper.client("control")
    answer = hold(client)
    assert answer["how"] == PTRACE, answer
    held = counter.value
    grow(keeper, clock, 400)
    assert counter.value == held
    assert hold(client)["how"] == PTRACE
    assert counter.value == held
    client.sock.close()
    grow(keeper, counter, 5)


@pytest.mark.parametrize("stays", [False, True])
def test_a_process_with_another_tracer_is_not_said_to_be_held(keep, python, tmp_path, stays):
    counter = Counter(tmp_path / "counter")
    keeper = keep(python, "-c", DEBUGGED, str(counter.path))
    grow(keeper, counter, 5)
    client = keeper.client("control")
    answer = ask(client, MessageKind.HOLD, stays=stays)
    assert answer["how"] == UNVERIFIED
    assert "is traced by another" in answer["reason"]
    if stays:
        ask(client, MessageKind.RESUME)
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
    assert hold(client)["how"] == PTRACE
    os.kill(main, signal.SIGUSR1)
    assert counter.value == 0
    client.sock.close()
    keeper.until(lambda: counter.value == 1, "the signal arrives")


def test_a_pause_lasts_until_it_is_ended(keep, python, tmp_path, clock):
    counter = Counter(tmp_path / "counter")
    keeper = keep(python, "-c", TIMERS, str(counter.path))
    grow(keeper, counter, 5)
    client = keeper.client("control")
    assert hold(client, stays=True)["how"] == PTRACE
    client.sock.close()
    held = counter.value
    grow(keeper, clock, 1000)
    assert counter.value == held
    other = keeper.client("control")
    assert ask(other, MessageKind.RESUME)["processes"] == 1
    grow(keeper, counter, 5)


@pytest.mark.parametrize("stays", [False, True])
def test_a_held_run_can_be_stopped(keep, python, tmp_path, stays):
    counter = Counter(tmp_path / "counter")
    keeper = keep(python, "-c", FORKS, str(counter.path))
    grow(keeper, counter, 5)
    below = process_tree.processes_under(keeper.minder)
    client = keeper.client("control")
    assert hold(client, stays=stays)["how"] == PTRACE
    other = keeper.client("control")
    other.send_json(MessageKind.STOP, {"grace_s": 0})
    if not stays:
        # What a snapshot relies on goes on only when that is over.
        held = counter.value
        assert hold(client)["how"] == PTRACE
        assert counter.value == held
        client.sock.close()
    other.read_until(lambda: other.ended, "the end")
    assert other.ended["reason"] == "stopped"
    keeper.wait_ended()
    assert below


def test_a_run_that_waits_for_its_client_does_not_start_while_held(keep, python, tmp_path):
    keeper = keep(python, "-c", "print('ran')", foreground=True)
    client = keeper.client("control")
    assert hold(client)["how"] == NOTHING
    foreground = keeper.client("foreground")
    assert hold(client)["how"] == NOTHING
    assert keeper.status() is None or keeper.status().pid is None
    client.sock.close()
    foreground.read_until(lambda: foreground.ended, "the end")
    assert bytes(foreground.out) == b"ran\n"
    keeper.wait_ended()
