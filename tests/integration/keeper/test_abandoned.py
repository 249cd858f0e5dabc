"""Runs that can no longer be reached: their directory was removed, or their starter was killed."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time

import pytest

from atoll.keeper import minder, process_tree, supervisor
from atoll.keeper.child_process import ServedDirectory
from atoll.keeper.wire import MessageKind


def spec_of(tmp_path, *argv, **changes):
    return {
        "run": "abandoned", "argv": list(argv), "env": {"PATH": os.environ["PATH"]},
        "cwd": str(tmp_path), "tty": False, "rows": 24, "cols": 80, "foreground": False,
        "stdin": "null", "timeout_s": None, "grace_s": 5.0, "log_limit_bytes": 1 << 20,
        "hold_ports": [], **changes,
    }  # fmt: skip


def until(is_so, what):
    deadline = time.monotonic() + 30
    while not is_so():
        if time.monotonic() > deadline:
            pytest.fail(f"never: {what}")
        time.sleep(0.005)


def test_a_place_is_lost_when_it_is_removed_or_replaced(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    made = ServedDirectory(str(place))
    assert not made.is_lost()
    place.rename(tmp_path / "away")
    assert made.is_lost()
    place.mkdir()
    assert made.is_lost()


class Guarded:
    """A keeper with its guard, which is our child; what is changed in its modules is so for it."""

    def __init__(self, tmp_path, *argv, starter=None, **changes):
        self.run_dir = tmp_path / "run"
        self.run_dir.mkdir()
        (self.run_dir / "spec.json").write_text(json.dumps(spec_of(tmp_path, *argv, **changes)))
        lock = os.open(self.run_dir / "alive", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        read, write = os.pipe()
        self.guard = supervisor.fork_guard(str(self.run_dir), lock, write, starter)
        os.close(write)
        os.close(lock)
        with open(read, "rb") as news:
            self.keeper = json.loads(news.readline())["pid"]

    def wait(self):
        """Until the guard has ended; fails when it takes too long, and ends it."""
        handle = os.pidfd_open(self.guard)
        is_over = bool(select.select([handle], [], [], 30)[0])
        os.close(handle)
        if not is_over:
            os.kill(self.guard, signal.SIGKILL)
        assert os.waitpid(self.guard, 0)[1] == 0


def test_a_run_ends_when_its_directory_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(minder, "_PLACE_S", 0.05)
    run = Guarded(tmp_path, "sleep", "600")
    until(lambda: process_tree.descendants(run.keeper), "the command")
    processes = [run.keeper, *process_tree.descendants(run.keeper)]
    shutil.rmtree(run.run_dir)
    run.wait()
    assert not any(map(process_tree.find_process, processes))


def test_a_run_ends_with_a_starter_that_never_became_its_client(tmp_path, monkeypatch):
    monkeypatch.setattr(minder, "HELLO_S", 3600.0)
    with subprocess.Popen(["sleep", "600"]) as starter:
        run = Guarded(tmp_path, "touch", "started", foreground=True, starter=starter.pid)
        starter.kill()
    run.wait()
    assert json.loads((run.run_dir / "status.json").read_text())["reason"] == "hangup"
    assert not (tmp_path / "started").exists()


def test_a_ctrl_c_that_comes_before_the_command(keep):
    """It is typed before the command has its terminal, and reaches it all the same."""
    run = keep("sleep", "600", tty=True, foreground=True, stdin="client")
    client = run.client("foreground", rows=24, cols=80)
    client.send(MessageKind.STDIN, b"\x03")
    ended = client.read_to_end()
    assert (ended["reason"], ended["signal"]) == ("signalled", signal.SIGINT)
    run.wait_ended()
