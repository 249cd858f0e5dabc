"""What to do about a daemon whose processes are stopped: the hint names the right one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.cli.app import run
from atoll.engine.network import daemon_client
from present import present

SOURCE = str(Path(__file__).parents[3] / "src")
LISTEN = """
import os, signal, socket, sys
sys.path.append({source!r})
from pathlib import Path
from atoll.engine.network import daemon_client
from atoll.keeper import wire

listener = wire.listen(Path({directory!r}), daemon_client.SOCKET, socket.SOCK_SEQPACKET)
print(flush=True)
os.read(0, 1)
"""


@pytest.fixture
def listener(atoll_home):
    """A process that listens on the daemon's socket and never answers."""
    directory = daemon_client.directory_of(Path(atoll_home))
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    program = LISTEN.format(source=SOURCE, directory=str(directory))
    argv = [sys.executable, "-I", "-c", program]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            present(process.stdout).readline()
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("is_stopped", [True, False])
def test_daemon_that_does_not_answer(listener, capsys, monkeypatch, is_stopped):
    monkeypatch.setattr(daemon_client, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(daemon_client, "_STARTED_S", 0.1)
    if is_stopped:
        listener.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, listener.pid, os.WSTOPPED | os.WNOWAIT)
    assert run(["daemon", "stop"]) == 5
    said = capsys.readouterr().err
    assert f"kill -9 {listener.pid}" in said
    assert (f"kill -CONT {listener.pid}" in said) is is_stopped
