"""Runs that nobody can reach any more: their directory was removed, or their starter was killed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

import atoll.keeper
from atoll.keeper import guard, minder, tree
from atoll.keeper.places import Place
from atoll.keeper.wire import Kind

STARTER = """
import fcntl, json, os, socket, subprocess, sys
from atoll.keeper import asking, bootstrap
root, run_dir = sys.argv[1:]
lock = os.open(run_dir + "/alive", os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
read, write = os.pipe()
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
argv = [*bootstrap(root), str(theirs.fileno()), run_dir]
subprocess.Popen(argv, pass_fds=(theirs.fileno(),), start_new_session=True)
asking.ask(ours, {"start": run_dir}, (lock, write))
print(os.read(read, 1000).decode(), flush=True)
sys.stdin.read()
"""


def spec_of(tmp_path, *argv, **changes):
    return {
        "run": "abandoned", "argv": list(argv), "env": {"PATH": os.environ["PATH"]},
        "cwd": str(tmp_path), "tty": False, "rows": 24, "cols": 80, "foreground": False,
        "stdin": "null", "timeout_s": None, "grace_s": 5.0, "log_limit_bytes": 1 << 20,
        "hold_ports": [], **changes,
    }  # fmt: skip


def is_free(run_dir):
    with open(run_dir / "alive", "r+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def until(is_so, what):
    deadline = time.monotonic() + 30
    while not is_so():
        if time.monotonic() > deadline:
            pytest.fail(f"never: {what}")
        time.sleep(0.005)


def test_a_place_is_lost_when_it_is_removed_or_replaced(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    made = Place(str(place))
    assert not made.is_lost()
    place.rename(tmp_path / "away")
    assert made.is_lost()
    place.mkdir()
    assert made.is_lost()


def test_a_run_ends_when_its_directory_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(minder, "_PLACE_S", 0.05)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "spec.json").write_text(json.dumps(spec_of(tmp_path, "sleep", "600")))
    lock = os.open(run_dir / "alive", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    read, write = os.pipe()
    watcher = guard.fork_guard(str(run_dir), lock, write)
    os.close(write)
    os.close(lock)
    with open(read, "rb") as news:
        keeper = json.loads(news.readline())["pid"]
    until(lambda: tree.descendants(keeper), "the command")
    processes = [keeper, *tree.descendants(keeper)]
    shutil.rmtree(run_dir)
    _, status = os.waitpid(watcher, 0)
    assert status == 0
    assert not any(map(tree.find_process, processes))


def test_a_run_ends_with_a_starter_that_never_became_its_client(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    spec = spec_of(tmp_path, "touch", "started", foreground=True)
    (run_dir / "spec.json").write_text(json.dumps(spec))
    root = str(atoll.keeper.__file__).rsplit("/atoll/", 1)[0]
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, root, str(run_dir)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    ready = json.loads(starter.stdout.readline())
    began = time.monotonic()
    assert not is_free(run_dir)
    starter.kill()
    starter.communicate(timeout=30)
    until(lambda: is_free(run_dir), "the end of the run")
    assert time.monotonic() - began < minder.HELLO_S
    assert json.loads((run_dir / "status.json").read_text())["reason"] == "hangup"
    assert not (tmp_path / "started").exists()
    until(lambda: tree.find_process(ready["pid"]) is None, "the keeper's end")


def test_a_ctrl_c_that_comes_before_the_command(keep):
    """It is typed before the command has its terminal, and reaches it all the same."""
    run = keep("sleep", "600", tty=True, foreground=True, stdin="client")
    client = run.client("foreground", rows=24, cols=80)
    client.send(Kind.STDIN, b"\x03")
    ended = client.read_to_end()
    assert (ended["reason"], ended["signal"]) == ("signalled", signal.SIGINT)
