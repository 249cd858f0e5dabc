"""How a run ends, and what the status says about it."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import time

import pytest

from atoll.keeper.status import parse_status
from atoll.keeper.wire import MessageKind


@pytest.mark.parametrize("code", [0, 1, 77, 255])
def test_exit_code(keep, code):
    status = keep("sh", "-c", f"exit {code}").wait_ended()
    assert (status.reason, status.exit_code, status.signal) == ("exited", code, None)
    assert status.message is None
    assert status.leftover == 0
    assert status.ended_at >= status.started_at


def test_signal(keep):
    status = keep("sh", "-c", "kill -9 $$").wait_ended()
    assert (status.reason, status.exit_code, status.signal) == ("signalled", None, 9)


def test_ready_names_the_processes_and_the_fork_server_is_gone(keep):
    keeper = keep("sleep", "1000")
    assert keeper.forkserver_exit == 0
    keeper.wait_started()
    status = keeper.status()
    assert status.state == "running"
    assert status.keeper[0] == keeper.minder
    assert status.guard[0] == keeper.guard
    assert keeper.stop().reason == "stopped"


def test_ended_frame_is_the_status_file(keep):
    keeper = keep("sh", "-c", "exit 3", foreground=True)
    ended = keeper.client("foreground").read_to_end()
    assert parse_status(ended).render() == keeper.wait_ended().render() == ended


def test_timeout(keep):
    began = time.monotonic()
    status = keep("sleep", "1000", timeout_s=0.3).wait_ended()
    assert (status.reason, status.signal) == ("timeout", signal.SIGTERM)
    assert 0.3 <= time.monotonic() - began < 5


def test_timeout_is_enforced_with_sigkill(keep):
    keeper = keep("sh", "-c", "trap '' TERM; while :; do sleep 1; done", timeout_s=0.3, grace_s=0.3)
    status = keeper.wait_ended()
    assert (status.reason, status.signal) == ("timeout", signal.SIGKILL)


@pytest.mark.parametrize("name", ["no-such-command", "./no-such-file", "/no/such/dir/x"])
def test_not_found(keep, name):
    status = keep(name).wait_ended()
    assert (status.reason, status.exit_code) == ("not-started", 127)
    assert f"`{name}`" in status.message


def test_not_executable(keep, tmp_path):
    (tmp_path / "plain").write_text("echo no")
    status = keep("./plain").wait_ended()
    assert (status.reason, status.exit_code) == ("not-started", 126)
    assert "Permission denied" in status.message


def test_a_later_place_in_the_path_is_tried(keep, tmp_path):
    for name, mode in (("one", 0o644), ("two", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tool").write_text("#!/bin/sh\nexit 5\n")
        (tmp_path / name / "tool").chmod(mode)
    env = {"PATH": f"{tmp_path}/absent:{tmp_path}/one:{tmp_path}/two"}
    assert keep("tool", env=env).wait_ended().exit_code == 5


def test_missing_interpreter_is_named_as_such(keep, tmp_path):
    (tmp_path / "script").write_text("#!/no/such/interpreter\n")
    (tmp_path / "script").chmod(0o755)
    status = keep("./script").wait_ended()
    assert status.exit_code == 127
    assert "interpreter" in status.message


def test_script_without_interpreter_runs_in_sh(keep, tmp_path):
    (tmp_path / "script").write_text("exit $1\n")
    (tmp_path / "script").chmod(0o755)
    assert keep("./script", "9").wait_ended().exit_code == 9


def test_missing_cwd(keep, tmp_path):
    status = keep("true", cwd=str(tmp_path / "absent")).wait_ended()
    assert (status.reason, status.exit_code) == ("not-started", 126)
    assert "cannot enter" in status.message
    assert "absent" in status.message


def test_impossible_argument_is_no_crash(keep):
    status = keep("echo", "a\0b").wait_ended()
    assert (status.reason, status.exit_code) == ("not-started", 126)


def test_bytes_that_are_no_text_reach_the_command(keep):
    value = os.fsdecode(b"\xff\xfe")
    keeper = keep("sh", "-c", 'printf "%s" "$0$X"', value, env={"X": value, "PATH": os.defpath})
    keeper.wait_ended()
    assert keeper.logged() == b"\xff\xfe\xff\xfe"


def test_the_command_starts_clean(keep, python):
    program = (
        "import os, signal\n"
        "ignored = [s for s in signal.valid_signals() if s not in (9, 19)]\n"
        "text = open('/proc/self/status').read().split('\\n')\n"
        "print([l.split()[1] for l in text if l.startswith(('SigIgn', 'SigBlk', 'Umask'))])\n"
        "print(sorted(os.listdir('/proc/%d/fd' % os.getppid())) and os.getsid(0) == os.getpid())\n"
    )
    keeper = keep("sh", "-c", "grep -E '^(SigIgn|SigBlk)' /proc/self/status; umask; echo $FOO")
    keeper.wait_ended()
    lines = keeper.logged().split(b"\n")
    assert lines[0].split() == [b"SigBlk:", b"0" * 16]
    # Signals 32 and 33 are the C library's own; whoever started the tests may have ignored them.
    assert int(lines[1].split()[1], 16) & ~(0b11 << 31) == 0
    assert lines[2:] == [b"0022", b"", b""]
    keeper = keep(python, "-c", program, umask=0o027)
    keeper.wait_ended()
    assert b"0027" in keeper.logged()
    assert b"True" in keeper.logged()


def test_neither_lock_nor_anything_else_is_inherited(keep):
    keeper = keep("sleep", "1000")
    pid = keeper.wait_started()
    keeper.until(lambda: os.readlink(f"/proc/{pid}/exe").endswith(("sleep", "coreutils")), "exec")
    # The loader has a library open for an instant; what is inherited stays.
    keeper.until(lambda: sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"], "only stdio")
    assert not keeper.is_unlocked()
    keeper.stop()
    assert keeper.is_unlocked()


def test_usage(keep, python):
    program = "import time\nx = bytearray(64 << 20)\nwhile time.process_time() < 0.3: pass"
    status = keep("sh", "-c", '"$0" -c "$1"; true', python, program).wait_ended()
    assert 0.3 <= status.cpu_s < 5
    assert 64 << 20 <= status.max_rss_bytes < 200 << 20


def test_bad_spec_is_reported_at_once(keep):
    keeper = keep("true", surprise=1)
    assert "surprise" in keeper.ready["error"]
    status = keeper.wait_ended()
    assert status.reason == "lost"
    assert "surprise" in status.message
    assert b"SpecError" in (keeper.run_dir / "keeper.err").read_bytes()


def test_two_clients_stop_at_once(keep):
    keeper = keep("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done")
    first, second, watcher = keeper.client("control"), keeper.client("control"), keeper.client()
    watcher.read_until(lambda: b"up" in watcher.out, "the command's first word")
    first.send_json(MessageKind.STOP, {"grace_s": 60})
    second.send_json(MessageKind.STOP, {"grace_s": 0.2})
    assert first.read_to_end() == second.read_to_end() == watcher.read_to_end()
    status = keeper.wait_ended()
    assert (status.reason, status.signal) == ("stopped", signal.SIGKILL)


def test_graceful_stop_keeps_the_exit_code(keep):
    keeper = keep("sh", "-c", "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.1; done")
    watcher = keeper.client()
    watcher.read_until(lambda: b"up" in watcher.out, "the command's first word")
    status = keeper.stop(grace_s=20)
    assert (status.reason, status.exit_code) == ("stopped", 7)
    assert keeper.logged() == b"up\nbye\n"


@pytest.mark.parametrize("target", ["minder", "guard"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_to_the_keeper_is_a_stop(keep, target, number):
    keeper = keep("sleep", "1000")
    keeper.wait_started()
    os.kill(getattr(keeper, target), number)
    assert keeper.wait_ended().reason == "stopped"


def test_ports_are_held_and_can_be_taken_over(keep, python, free_port):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        other = taken.getsockname()[1]
        program = (
            f"import socket, time\ns = socket.create_server(('127.0.0.1', {free_port}))\n"
            "print('up', flush=True)\ntime.sleep(1000)"
        )
        keeper = keep(python, "-c", program, hold_ports=[free_port, other])
        client = keeper.client()
        client.read_until(lambda: b"up\n" in client.out or client.err, "the server")
        assert client.err == b""
        keeper.wait_started()
        assert keeper.status().taken_ports == [other]
        socket.create_connection(("127.0.0.1", free_port), 5).close()
        assert keeper.stop().reason == "stopped"


def test_a_held_port_cannot_be_taken(keep, free_port):
    keeper = keep("sleep", "1000", hold_ports=[free_port])
    keeper.wait_started()
    with socket.socket() as stranger, pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
        stranger.bind(("127.0.0.1", free_port))
    keeper.stop()
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", free_port))


def test_run_directory_with_a_long_path(keep, tmp_path):
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)
    keeper = keep("sh", "-c", "echo hi; exit 4", run_dir=deep / "run", foreground=True)
    client = keeper.client("foreground")
    assert client.read_to_end()["exit_code"] == 4
    assert client.out == b"hi\n"
    keeper.wait_ended()


def test_a_keeper_may_open_more_files_than_its_command(keep):
    """The usual soft limit is for programs that use `select`; a keeper serves many clients."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(256, before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, before[1]))
    try:
        run = keep("sh", "-c", "ulimit -Sn; ulimit -Hn; sleep 600")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    client = run.client("attach")
    client.read_until(lambda: client.out.count(b"\n") == 2, "the limits")
    assert client.out.split()[0] == str(low).encode()
    assert resource.prlimit(run.minder, resource.RLIMIT_NOFILE)[0] == before[1]
