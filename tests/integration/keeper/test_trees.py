"""Nothing of a run is left, whatever it does and whichever process is killed."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from atoll.keeper import process_tree, termination, tracer
from atoll.keeper.wire import MessageKind
from busy import FORKS, LEAVING, Counter
from present import present

# Double fork, own session, no descriptors, no environment, deaf to everything that can be ignored.
DAEMON = """
import os, sys, signal
for number in signal.valid_signals() - {9, 19}:
    try: signal.signal(number, signal.SIG_IGN)
    except OSError: pass
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[1] + ".new", "w") as f: f.write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        os.closerange(0, 100)
        os.execve("/bin/sleep", ["sleep", "1000"], {})
    os._exit(0)
os.wait()
"""

# Every process forks again as soon as it can; bounded only by a file that counts.
BOMB = """
import os, sys, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
while True:
    fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    size = os.fstat(fd).st_size
    if size < 400:
        os.write(fd, b"x")
        if os.fork() == 0:
            os.setsid()
    os.close(fd)
    if size >= 400:
        signal.pause()
"""

# Keeps only a few alive, but each only for a moment: whoever reads /proc is always late.
RUNNER = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
"""


def start_daemon(keep, python, tmp_path, tail="exec sleep 1000", **changes):
    pid_file = tmp_path / "daemon"
    program = f'"$0" -c "$1" "$2"; {tail}'
    keeper = keep("sh", "-c", program, python, DAEMON, str(pid_file), **changes)
    keeper.until(pid_file.exists, "the daemon")
    return keeper, keeper.watch(int(pid_file.read_text()))


def test_daemon_is_gone_after_stop(keep, python, tmp_path):
    keeper, daemon = start_daemon(keep, python, tmp_path)
    assert keeper.stop(grace_s=0.3).reason == "stopped"
    assert process_tree.find_process(daemon.pid) is None


def test_daemon_is_gone_after_a_natural_end(keep, python, tmp_path):
    keeper, daemon = start_daemon(keep, python, tmp_path, tail="exit 6", grace_s=0.3)
    status = keeper.wait_ended()
    assert (status.reason, status.exit_code, status.leftover) == ("exited", 6, 1)
    assert process_tree.find_process(daemon.pid) is None


def test_children_may_end_in_peace(keep, tmp_path):
    mark = tmp_path / "mark"
    child = f"trap 'echo peace > {mark}; exit' TERM; echo up; while :; do sleep 0.05; done"
    keeper = keep("sh", "-c", f"({child}) & read x; exit 2", stdin="client")
    client = keeper.client()
    client.read_until(lambda: b"up" in client.out, "the child")
    client.send(MessageKind.STDIN, b"\n")
    status = keeper.wait_ended()
    assert (status.reason, status.exit_code) == ("exited", 2)
    assert status.leftover >= 1
    assert mark.read_text() == "peace\n"


def test_fork_bomb(keep, python, tmp_path):
    count = tmp_path / "count"
    keeper = keep(python, "-c", BOMB, str(count))
    keeper.until(lambda: count.exists() and count.stat().st_size >= 50, "some forks")
    assert keeper.stop(grace_s=0.1).reason == "stopped"
    assert process_tree.descendants(keeper.minder) == []


def test_process_that_never_stays(keep, python):
    keeper = keep("sh", "-c", '"$0" -c "$1"; sleep 1000', python, RUNNER)
    client = keeper.client()
    client.read_until(lambda: b"up" in client.out, "the first fork")
    assert keeper.stop(grace_s=0.2).reason == "stopped"


@pytest.mark.parametrize("program", [FORKS, LEAVING], ids=["one group", "many"])
def test_chain_of_forks_is_ended(keep, python, tmp_path, program):
    """Each process is gone before a signal can be sent to it alone."""
    counter = Counter(tmp_path / "counter")
    keeper = keep(python, "-c", program, str(counter.path))
    keeper.until(lambda: counter.value > 20, "forks")
    ended = keeper.stop(grace_s=0)
    assert (ended.reason, ended.message) == ("stopped", None)
    last = counter.value
    # As long as it took before, and more.
    other = Counter(tmp_path / "other")
    clock = keep(python, "-c", program, str(other.path))
    clock.until(lambda: other.value > 40, "forks")
    clock.stop(grace_s=0)
    assert counter.value == last


CHAINS = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        while True:
            os.setsid()
            while True:
                try:
                    pid = os.fork()
                except OSError:
                    continue
                break
            if pid:
                os._exit(0)
print("up", flush=True)
signal.pause()
"""


def test_many_chains_of_forks_are_ended(keep, python):
    """Together they produce dead children faster than the keeper reaps them."""
    keeper = keep(python, "-c", CHAINS, "20")
    client = keeper.client()
    client.read_until(lambda: b"up" in client.out, "the chains")
    ended = keeper.stop(grace_s=0)
    assert (ended.reason, ended.message) == ("stopped", None)
    assert process_tree.descendants(keeper.minder) == []


def test_reaping_returns_while_children_go_on_dying(monkeypatch):
    """With a small limit, so that a few children stand for an endless supply."""
    monkeypatch.setattr(process_tree, "REAP_LIMIT", 3)
    pids = [os.posix_spawn("/bin/true", ["true"], {}) for _ in range(5)]
    for pid in pids:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    first, has_children = process_tree.reap()
    assert (len(first), has_children, process_tree.is_cut_short(first)) == (3, True, True)
    second, _ = process_tree.reap()
    assert {child.pid for child in (*first, *second)} >= {*pids}
    assert not process_tree.is_cut_short(second)


def test_stopped_processes_are_ended(keep, python):
    keeper = keep("sh", "-c", "sleep 1000 & kill -STOP $! $$; wait")
    pid = keeper.wait_started()
    keeper.until(lambda: (now := process_tree.find_process(pid)) and now.state == "T", "the stop")
    status = keeper.stop()
    assert (status.reason, status.signal) == ("stopped", signal.SIGTERM)


@pytest.mark.parametrize("victim", ["minder", "guard"])
def test_keeper_is_killed(keep, python, tmp_path, victim):
    keeper, daemon = start_daemon(keep, python, tmp_path, grace_s=0.3)
    main = keeper.watch(keeper.status().pid)
    os.kill(getattr(keeper, victim), signal.SIGKILL)
    status = keeper.wait_ended()
    assert status.reason == "lost"
    assert "killed" in status.message
    assert status.pid == main.pid
    assert status.started_at
    assert process_tree.find_process(daemon.pid) is None
    assert keeper.processes() == []


@pytest.mark.parametrize("victim", ["minder", "guard"])
def test_keeper_is_killed_while_a_bomb_goes_off(keep, python, tmp_path, victim):
    count = tmp_path / "count"
    keeper = keep(python, "-c", BOMB, str(count), grace_s=0.1)
    keeper.until(lambda: count.exists() and count.stat().st_size >= 50, "some forks")
    os.kill(getattr(keeper, victim), signal.SIGKILL)
    assert keeper.wait_ended().reason == "lost"
    assert keeper.processes() == []


def test_keeper_is_killed_before_its_client_came(keep):
    keeper = keep("true", foreground=True)
    os.kill(keeper.minder, signal.SIGKILL)
    assert keeper.wait_ended().reason == "lost"


def test_both_are_killed_and_the_main_process_goes_too(keep):
    keeper = keep("sleep", "1000")
    main = keeper.watch(keeper.wait_started())
    os.kill(keeper.guard, signal.SIGKILL)
    os.kill(keeper.minder, signal.SIGKILL)
    keeper.until(lambda: process_tree.find_process(main.pid) is None, "the end of the main process")
    keeper.until(keeper.is_unlocked, "the end of the lock")
    (keeper.run_dir / "control").unlink(missing_ok=True)  # the engine's part


def test_names_with_spaces_and_parentheses_are_read(keep, tmp_path):
    odd = tmp_path / "a) S 1 (b"
    odd.symlink_to("/bin/sleep")
    keeper = keep(str(odd), "1000")
    pid = keeper.wait_started()
    keeper.until(lambda: process_tree.descendants(keeper.minder) == [pid], "the command")
    found = present(process_tree.find_process(pid))
    assert found.ppid == keeper.minder
    assert keeper.stop().reason == "stopped"


def test_signals_go_only_to_the_process_that_was_seen(keep):
    keeper = keep("sleep", "1000")
    pid = keeper.wait_started()
    seen = present(process_tree.find_process(pid))
    namesake = copy.copy(seen)
    namesake.start -= 1
    assert process_tree.send_signal(namesake, signal.SIGKILL) is False
    assert process_tree.send_signal(seen, signal.SIGKILL) is True
    assert keeper.wait_ended().signal == signal.SIGKILL


def test_a_group_whose_number_was_given_to_a_stranger_is_left_alone():
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as stranger:
        seen = present(process_tree.find_process(stranger.pid))
        gone = copy.copy(seen)
        gone.session -= 1
        process_tree.kill_groups([gone])
        assert stranger.poll() is None
        # As a control: by its own session it is found.
        process_tree.kill_groups([seen])
        assert stranger.wait(10) == -signal.SIGKILL


def test_a_number_that_was_cut_off_is_no_child():
    """It could be a stranger's."""
    with contextlib.ExitStack() as stack:
        started = set()
        for _ in range(5):
            child = stack.enter_context(subprocess.Popen(["sleep", "1000"]))
            stack.callback(child.kill)
            started.add(child.pid)
        whole = set(tracer.children(os.getpid()))
        assert started <= whole
        listed = Path(f"/proc/self/task/{os.getpid()}/children").read_bytes()
        found = [set(tracer.children(os.getpid(), limit)) for limit in range(len(listed) + 1)]
        assert all(part <= whole for part in found)
        assert found[-1] == whole
        # As a control: cut off anywhere, the list names others.
        cut = {int(word) for limit in range(len(listed)) for word in listed[:limit].split()}
        assert not cut <= whole


def test_what_cannot_be_killed_does_not_hold_the_keeper(keep, monkeypatch):
    """A stuck process cannot be had on demand, so no signal is delivered here."""
    keeper = keep("sleep", "1000")
    pid = keeper.wait_started()
    monkeypatch.setattr(termination, "GIVE_UP_S", 0.3)
    monkeypatch.setattr(process_tree, "send_signal", lambda *_: False)
    monkeypatch.setattr(process_tree, "kill_groups", lambda *_: None)
    stuck = termination.Ending(keeper.minder, [(signal.SIGTERM, 0.1)], time.monotonic())

    def is_given_up() -> bool:
        stuck.advance(time.monotonic(), main_is_gone=True)
        return stuck.is_given_up

    keeper.until(is_given_up, "the end of all attempts")
    assert stuck.leftover == 0
    assert str(pid) in termination.survivors_message(keeper.minder)
    monkeypatch.undo()
    assert keeper.stop().reason == "stopped"


def test_a_hastened_end_skips_the_steps_to_come(keep):
    keeper = keep("sh", "-c", "trap '' HUP TERM; echo up; while :; do sleep 0.05; done", grace_s=60)
    client = keeper.client()
    client.read_until(lambda: client.out, "the first word")
    os.kill(keeper.minder, signal.SIGTERM)
    client.send_json(MessageKind.STOP, {"grace_s": 0.1})
    assert client.read_to_end()["signal"] == signal.SIGKILL
    assert keeper.wait_ended().reason == "stopped"
