"""Clients come, go, vanish and misbehave; only the foreground client matters to the run."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys

import pytest

from atoll.keeper import wire
from atoll.keeper.wire import MessageKind


def test_command_waits_for_its_foreground_client(keep, tmp_path):
    keeper = keep("touch", "mark", foreground=True)
    control = keeper.client("control")
    attached = keeper.client("attach")
    attached.send_json(MessageKind.RESIZE, {"rows": 1, "cols": 1})
    assert keeper.status() is None
    assert not (tmp_path / "mark").exists()
    client = keeper.client("foreground")
    client.read_to_end()
    assert control.read_to_end() == attached.read_to_end() == client.ended
    assert (tmp_path / "mark").exists()
    keeper.wait_ended()


def test_stop_before_the_start(keep, tmp_path):
    keeper = keep("touch", "mark", foreground=True)
    status = keeper.stop()
    assert (status.reason, status.exit_code, status.started_at) == ("stopped", None, None)
    assert not (tmp_path / "mark").exists()


def test_only_one_foreground_client(keep):
    keeper = keep("cat", foreground=True, stdin="client")
    first = keeper.client("foreground")
    first.send(MessageKind.STDIN, b"x")
    first.read_until(lambda: first.out == b"x", "the echo")
    second = keeper.client("foreground")
    second.read_until(lambda: second.is_over, "the refusal")
    assert "foreground" in second.errors[0]["message"]
    first.send(MessageKind.STDIN_EOF)
    assert first.read_to_end()["exit_code"] == 0
    keeper.wait_ended()


def test_background_run_takes_no_foreground_client(keep):
    keeper = keep("sleep", "1000")
    client = keeper.client("foreground")
    client.read_until(lambda: client.is_over, "the refusal")
    assert keeper.stop().reason == "stopped"


CLIENT = """
import sys
sys.path.append(sys.argv[2])
from atoll.keeper import wire
sock = wire.connect(sys.argv[1])
sock.sendall(wire.encode_json(wire.MessageKind.HELLO, {"role": "foreground"}))
while sock.recv(65536): pass
"""


def test_foreground_client_is_killed(keep, tmp_path):
    script = "trap 'echo hup > mark; exit 5' HUP; sleep 1000 & while :; do sleep 0.05; done"
    keeper = keep("sh", "-c", script, foreground=True)
    argv = [sys.executable, "-c", CLIENT, str(keeper.run_dir), str(keeper.root)]
    client = subprocess.Popen(argv)
    keeper.wait_started()
    watcher = keeper.client()
    keeper.until(lambda: len(keeper.processes()) >= 5, "the command's children")
    client.kill()
    client.wait(10)
    assert watcher.read_to_end()["reason"] == "hangup"
    status = keeper.wait_ended()
    assert (status.reason, status.exit_code) == ("hangup", 5)
    assert (tmp_path / "mark").read_text() == "hup\n"


def test_hangup_ends_those_who_do_not_listen(keep):
    script = "trap '' HUP TERM; echo up; while :; do sleep 0.05; done"
    keeper = keep("sh", "-c", script, foreground=True, grace_s=0.4)
    client = keeper.client("foreground")
    client.read_until(lambda: client.out, "the first word")
    client.close()
    status = keeper.wait_ended()
    assert (status.reason, status.signal) == ("hangup", signal.SIGKILL)


def test_attached_clients_come_and_go(keep):
    keeper = keep("sh", "-c", "echo first; echo second >&2; exec sleep 1000")
    for _ in range(3):
        client = keeper.client("attach")
        client.read_until(lambda c=client: b"second" in c.err, "the replay")
        assert (client.out, client.err) == (b"first\n", b"second\n")
        client.close()
    assert keeper.stop().reason == "stopped"


def test_replay_is_the_recent_end(keep):
    keeper = keep("sh", "-c", "seq 100000; echo up >&2; exec sleep 1000")
    first = keeper.client("attach")
    first.read_until(lambda: first.err, "all output")
    late = keeper.client("attach")
    late.read_until(lambda: late.err, "the replay")
    assert late.out.endswith(b"99999\n100000\n")
    assert 60_000 < len(late.out) <= 65536
    assert keeper.stop().reason == "stopped"


def test_attached_client_that_does_not_read_is_dropped(keep):
    keeper = keep("head", "-c", str(30 << 20), "/dev/zero", foreground=True)
    lazy = keeper.client("attach")
    client = keeper.client("foreground")
    client.sock.settimeout(60)
    assert client.read_to_end()["exit_code"] == 0
    assert len(client.out) == 30 << 20
    lazy.read_until(lambda: lazy.is_over, "the end of patience")
    assert lazy.ended is None
    assert len(lazy.out) < 8 << 20
    keeper.wait_ended()


def test_what_a_client_said_before_it_left_counts(keep):
    """It leaves at once, with output for it still on the way."""
    keeper = keep("yes")
    client = keeper.client("attach")
    client.read_once()
    client.send_json(MessageKind.STOP, {"grace_s": 5})
    client.close()
    assert keeper.wait_ended().reason == "stopped"


BAD = {
    "garbage": b"GET / HTTP/1.0\r\n\r\n",
    "too long": struct.pack("!BI", MessageKind.HELLO, 1 << 30),
    "no hello": wire.encode_json(MessageKind.STOP, {}),
    "not json": wire.encode(MessageKind.HELLO, b"\xff\xfe"),
    "deep json": wire.encode(MessageKind.HELLO, b"[" * 200_000),
    "a list": wire.encode(MessageKind.HELLO, b"[]"),
    "no such role": wire.encode_json(MessageKind.HELLO, {"role": "king"}),
    "odd role": wire.encode_json(MessageKind.HELLO, {"role": ["attach"]}),
    "twice": wire.encode_json(MessageKind.HELLO, {"role": "attach"}) * 2,
    "wrong way": wire.encode_json(MessageKind.HELLO, {"role": "attach"})
    + wire.encode(MessageKind.OUT, b"{}"),
    "no signal": wire.encode_json(MessageKind.HELLO, {"role": "attach"})
    + wire.encode_json(MessageKind.SIGNAL, {"signal": 4000}),
    "odd grace": wire.encode_json(MessageKind.HELLO, {"role": "control"})
    + wire.encode_json(MessageKind.STOP, {"grace_s": "soon"}),
    "endless grace": wire.encode_json(MessageKind.HELLO, {"role": "control"})
    + wire.encode(MessageKind.STOP, b'{"grace_s": NaN}'),
    "odd size": wire.encode_json(MessageKind.HELLO, {"role": "attach", "rows": "x", "cols": 1}),
    "may not write": wire.encode_json(MessageKind.HELLO, {"role": "control"})
    + wire.encode(MessageKind.STDIN, b"x"),
}


def test_bad_frames_cost_only_their_sender(keep):
    keeper = keep("cat", foreground=True, stdin="client")
    good = keeper.client("foreground")
    for name, data in BAD.items():
        bad = keeper.client(None)
        bad.sock.sendall(data)
        bad.read_until(lambda b=bad: b.is_over, f"the refusal of {name}")
        assert bad.ended is None, name
    torn = keeper.client(None)
    torn.sock.sendall(b"\x01\x00")
    torn.close()
    good.send(MessageKind.STDIN, b"still here")
    good.send(MessageKind.STDIN_EOF)
    assert good.read_to_end()["exit_code"] == 0
    assert good.out == b"still here"
    keeper.wait_ended()


STRANGER = """
import os, sys
sys.path.append(sys.argv[2])
from atoll.keeper import wire
directory = os.open(sys.argv[1], os.O_PATH)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sock = wire.connect(f"/proc/self/fd/{directory}")
sock.sendall(wire.encode_json(wire.MessageKind.HELLO, {"role": "control"}))
sock.sendall(wire.encode_json(wire.MessageKind.STOP, {"grace_s": 0}))
try: print(sock.recv(100))
except ConnectionResetError: print(b"")
"""


def test_other_users_are_refused(keep):
    if os.getuid() != 0:
        pytest.skip("only root can be another user for a moment")
    keeper = keep("sh", "-c", "read x", foreground=True, stdin="client")
    client = keeper.client("foreground")
    # Even if the directory were open to all.
    keeper.run_dir.chmod(0o711)
    (keeper.run_dir / "control").chmod(0o666)
    argv = [sys.executable, "-I", "-S", "-c", STRANGER, str(keeper.run_dir), str(keeper.root)]
    stranger = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    assert stranger.stdout in ("b''\n", ""), stranger.stderr
    assert stranger.stdout or "BrokenPipe" in stranger.stderr, stranger.stderr
    client.send(MessageKind.STDIN, b"\n")
    assert client.read_to_end()["reason"] == "exited"
    keeper.wait_ended()


def test_socket_is_private(keep):
    keeper = keep("sleep", "1000")
    assert (keeper.run_dir / "control").stat().st_mode & 0o777 == 0o600
    keeper.wait_started()
    assert (keeper.run_dir / "status.json").stat().st_mode & 0o777 == 0o600
    assert (keeper.run_dir / "log.jsonl").stat().st_mode & 0o777 == 0o600
    keeper.stop()


def test_signal_to_the_command(keep):
    keeper = keep("sh", "-c", "trap 'echo usr; exit 9' USR1; echo up; while :; do sleep 0.05; done")
    client = keeper.client()
    client.read_until(lambda: b"up" in client.out, "the first word")
    client.send_json(MessageKind.SIGNAL, {"signal": int(signal.SIGUSR1)})
    assert client.read_to_end()["exit_code"] == 9
    keeper.wait_ended()
