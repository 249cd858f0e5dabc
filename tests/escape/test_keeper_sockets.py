"""The keeper's sockets, reached from inside: they refuse every request, and start only runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.engine.enclosure import views
from atoll.engine.run import runs
from atoll.engine.run.runs import RunSpec
from atoll.host.process import wait_until
from atoll.keeper import requests, wire
from atoll.model.enclosure import encode

# Prints what a keeper answers to the first question; nothing when it hangs up.
CLIENT = """
import json, os, socket, sys
kind, directory, name, said = sys.argv[1:]
os.chdir(directory)
sock = socket.socket(socket.AF_UNIX, getattr(socket, kind))
sock.settimeout(30)
try:
    sock.connect(name)
    sock.sendall(bytes.fromhex(said))
    answer = sock.recv(1000)
except ConnectionError:
    answer = b""
print(len(answer))
"""
NAMESPACES = {
    "all": ("--unshare-user", "--unshare-pid"),
    "processes": ("--unshare-pid",),
    "files": (),
}


def client(kind, directory, name, said, around=()):
    words = [*around, sys.executable, "-c", CLIENT, kind, directory, name, said.hex()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout) > 0


def around(namespace):
    """The same user with all files of the host, in namespaces of its own."""
    given = NAMESPACES[namespace]
    if os.geteuid() != 0:
        given = ("--unshare-user", *given)
    return ("bwrap", *dict.fromkeys(given), "--dev-bind", "/", "/", "--proc", "/proc", "--")


@pytest.fixture
def busy(capsule):
    run = capsule.start(RunSpec(argv=("sleep", "1000"), background=True))
    yield capsule, run
    capsule.stop()


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_processes_in_other_namespaces_are_refused(busy, namespace):
    capsule, run = busy
    ping = ("SOCK_SEQPACKET", capsule.record.directory, requests.SOCKET, b'{"ping": true}')
    hello = wire.encode_json(wire.MessageKind.HELLO, {"role": "control"})
    hold = hello + wire.encode_json(wire.MessageKind.HOLD, {})
    control = ("SOCK_STREAM", run.directory, wire.CONTROL, hold)
    # The control: one of ours.
    assert client(*ping)
    assert client(*control)
    assert not client(*ping, around=around(namespace))
    assert not client(*control, around=around(namespace))


def start(capsule, directory, spec):
    """What the holder makes of a directory with a spec of our own; False when it refuses."""
    Path(directory).mkdir(parents=True)
    Path(directory, "spec.json").write_text(json.dumps(encode(spec)))
    lock = os.open(Path(directory, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    reader, writer = os.pipe()
    try:
        with requests.connect(capsule.record.directory, timeout_s=30) as sock:
            requests.ask(sock, {"start": str(directory)}, (lock, writer))
    except (EOFError, ConnectionError):
        return False
    else:
        os.close(writer)
        writer = -1
        assert os.read(reader, 1000)
        return True
    finally:
        for fd in (lock, reader, writer):
            if fd >= 0:
                os.close(fd)


def forged(capsule, marker):
    """A run without walls and limits, as any process that reached a holder could once start it."""
    inside = capsule.enclosure()._replace(walls=None, limits=None)
    spec = RunSpec(argv=("sh", "-c", f"id > {marker}; id > /tmp/inside"), background=True)
    return runs.keeper_spec("0" * 16, inside, spec)


def test_a_forged_spec_gets_the_walls_of_its_capsule(busy, tmp_path):
    capsule, _ = busy
    marker = tmp_path / "marker"
    directory = Path(capsule.record.directory, "runs", "77")
    assert start(capsule, directory, forged(capsule, marker))

    def is_over():
        status = directory / "status.json"
        return status.exists() and json.loads(status.read_text())["state"] == "ended"

    assert wait_until(is_over, timeout_s=60)
    assert not marker.exists()
    assert capsule.run(["cat", "/tmp/inside"]).exit_code == 0
    # The control: without walls it can write there.
    subprocess.run(forged(capsule, marker).argv, check=False, capture_output=True)
    assert marker.exists()
    os.unlink("/tmp/inside")


def test_only_directories_of_own_runs_are_started(busy, tmp_path):
    capsule, _ = busy
    own = Path(capsule.record.directory)
    spec = forged(capsule, tmp_path / "marker")
    (own / "runs" / "88").symlink_to(tmp_path / "elsewhere")
    for place in (tmp_path / "elsewhere", own / "runs" / "88x", own / "other" / "1"):
        assert not start(capsule, place, spec)
    with requests.connect(str(own), timeout_s=30) as sock:
        reader, writer = os.pipe()
        with pytest.raises((EOFError, ConnectionError)):
            requests.ask(sock, {"start": str(own / "runs" / "88")}, (reader, writer))
        os.close(reader)
        os.close(writer)
    assert views.living_runs(capsule.record) == 1


@pytest.mark.parametrize(
    "message",
    [b"", b"{", b"[]", b"null", b'{"start": 1}', b'{"sockets": [[1]]}', b'{"sockets": [["a", {}]]}',
     b'{"sockets": [[1e400, 3]]}', b'{"join": null, "x": ' + b"[" * 50_000, b'{"no": 1}'],
)  # fmt: skip
def test_no_message_ends_a_holder(busy, message):
    capsule, _ = busy
    with requests.connect(capsule.record.directory, timeout_s=30) as sock:
        sock.sendall(message)
        sock.settimeout(30)
        sock.recv(1000)
    assert views.living_runs(capsule.record) == 1
