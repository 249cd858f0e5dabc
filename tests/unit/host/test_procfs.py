from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid

import pytest

from atoll.host import procfs
from atoll.host.procfs import MARKER, end_marked, family, marked, processes
from atoll.keeper import process_tree
from atoll.model.state import Process
from present import present


@pytest.fixture
def token():
    return uuid.uuid4().hex


@pytest.fixture
def start():
    """`start(argv, token)`: a process that carries the marker; killed at the end."""
    started = []

    def begin(argv, token, **kwargs):
        env = {**os.environ, MARKER: token}
        started.append(subprocess.Popen(argv, env=env, **kwargs))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def is_gone(pid):
    process = process_tree.find_process(pid)
    return process is None or process.is_dead


def process_of(pid, ppid):
    return Process(pid=pid, ppid=ppid, command="x", cpu_s=0, rss_bytes=0, age_s=0)


@pytest.mark.parametrize("name", [b"sh", b"a b", b") R 1 (", b"((", b"))) Z 0 0", b""])
def test_command_name_cannot_forge_fields(name):
    line = b"42 (" + name + b") S 7 42 43" + b" 0" * 48 + b"\n"
    found = present(process_tree.parse_stat(42, line))
    assert (found.state, found.ppid, found.group, found.session) == ("S", 7, 42, 43)


def test_own_process_is_seen_as_it_is():
    me = processes()[os.getpid()]
    assert me.ppid == os.getppid()
    assert "python" in me.command
    assert me.rss_bytes > 1 << 20
    assert me.cpu_s > 0
    assert 0 <= me.age_s < 3600 * 24


def test_process_with_an_odd_name_is_read(start, token, tmp_path, wait_for):
    odd = tmp_path / ") R 1 (\n"
    odd.symlink_to("/bin/sleep")
    process = start([str(odd), "60"], token)
    wait_for(lambda: "60" in processes()[process.pid].command, what="the exec")
    assert processes()[process.pid].ppid == os.getpid()


def test_dead_child_that_no_process_reaped_is_no_process(start, token, wait_for):
    process = start(["sleep", "60"], token)
    assert process.pid in processes()
    os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: process.pid not in processes(), what="the zombie to be left out")


def test_marker_is_matched_whole(start, token, wait_for):
    process = start(["sleep", "60"], token)
    wait_for(lambda: marked(token) == [process.pid], what="the marker")
    assert marked(token[:-1]) == []
    assert marked(token + "0") == []
    assert marked("") == []


def test_own_process_is_never_marked(monkeypatch, token):
    program = (
        f"import os; from atoll.host.procfs import marked; print(os.getpid() in marked({token!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, MARKER: token},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"


def test_family_has_parents_first():
    table = {
        p.pid: p for p in (process_of(4, 2), process_of(2, 1), process_of(3, 1), process_of(9, 8))
    }
    assert [p.pid for p in family([1, 2], table)] == [2, 4]
    assert [p.pid for p in family([2, 4, 4], table)][:2] == [2, 4]
    assert family([77], table) == []


def test_family_ends_also_when_pids_were_used_again():
    table = {p.pid: p for p in (process_of(1, 2), process_of(2, 1))}
    assert sorted(p.pid for p in family([1], table)) == [1, 2]


STUBBORN = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
bare = {"PATH": os.environ["PATH"]}
child = subprocess.Popen(["sleep", "300"], env=bare)
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), child.pid, flush=True)
    signal.pause()
os.wait()
"""


def test_sweep_ends_what_hides(start, token, wait_for):
    process = start([sys.executable, "-c", STUBBORN], token, stdout=subprocess.PIPE, text=True)
    daemon, unmarked = (int(word) for word in process.stdout.readline().split())
    assert end_marked(token)
    process.wait()
    wait_for(lambda: is_gone(daemon) and is_gone(unmarked), what="the end of all")
    assert marked(token) == []


def test_sweep_ends_what_is_stopped(start, token):
    process = start(["sleep", "60"], token)
    process.send_signal(signal.SIGSTOP)
    assert end_marked(token)
    assert process.wait() == -signal.SIGKILL


def test_sweep_leaves_others_alone(start, token):
    other = start(["sleep", "60"], f"{token}-other")
    assert end_marked(token)
    assert other.poll() is None


def test_process_that_vanishes_meanwhile_is_no_error(monkeypatch):
    monkeypatch.setattr(procfs, "_pids", lambda: iter([os.getpid(), 2**22 + 1]))
    assert list(processes()) == [os.getpid()]


def test_of_a_long_command_line_only_the_beginning_is_read(start, token):
    words = ["x" * 100_000] * 15
    program = "import sys; print(flush=True); sys.stdin.read()"
    child = start(
        [sys.executable, "-c", program, *words],
        token,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    child.stdout.readline()
    with open(f"/proc/{child.pid}/cmdline", "rb") as stream:
        assert len(stream.read()) > 1_500_000
    command = processes()[child.pid].command
    assert command.startswith(f"{sys.executable} -c {program}")
    assert len(command) == 4096
    child.stdin.close()
