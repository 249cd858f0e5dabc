"""The way out under load and abuse: many connections, slow ones, large ones, sudden ends."""

from __future__ import annotations

import os
import resource
import signal
import time

import pytest

import stages
from atoll.daemon.egress.limits import most_connections

BYTES = 100 << 20
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
MOST = most_connections(HARD)
"""What one capsule may have, where its daemon may have no more descriptors than we."""
MANY = min(1000, MOST - 8)


@pytest.fixture
def stage(tmp_path):
    with stages.played(tmp_path / "stage") as stage:
        stage.allow("allowed.example", "allowed.example:8080")
        stage.allow(mode="open", capsule="wide")
        yield stage


@pytest.fixture
def crowd(stage):
    """Opens many connections, and closes them in the end."""
    made = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (HARD, HARD))

    def come(count: int, first: bytes = b"") -> list:
        for _ in range(count):
            sock = stage.dial()
            made.append(sock)
            sock.sendall(first)
        return made

    yield come
    for sock in made:
        sock.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


CONNECT = b"CONNECT allowed.example:8080 HTTP/1.1\r\nHost: allowed.example:8080\r\n\r\n"


def seconds(stage, *argv: object, **how: object) -> float:
    began = time.monotonic()
    assert stage.curl(*argv, **how).returncode == 0
    return time.monotonic() - began


def test_a_thousand_connections_at_once(stage, crowd):
    tunnels = crowd(MANY, CONNECT)
    for sock in tunnels:
        assert b" 200 " in sock.recv(4096)
    for number, sock in enumerate(tunnels):
        sock.sendall(b"number %d" % number)
    for number, sock in enumerate(tunnels):
        assert sock.recv(100) == b"number %d" % number
    assert seconds(stage, "https://allowed.example/hello") < 5


def test_too_many_are_turned_away_and_others_do_not_notice(stage, crowd):
    """N29: connections that say nothing, or everything but an end."""
    crowd(MOST // 2)
    crowd(MOST // 2, b"GET http://allowed.example/ HTTP/1.1\r\nX: ")
    assert [stage.speak() for _ in range(200)] == [b""] * 200
    stages.wait_for(lambda: sum(attempt.times for attempt in stage.attempts()) == 200)
    assert {attempt.why for attempt in stage.attempts()} == {"too many connections at once"}
    assert len(stage.attempts()) < 50
    assert seconds(stage, "https://allowed.example/hello", capsule="wide") < 5


@pytest.mark.slow
def test_slow_heads_are_cut_off(stage, crowd):
    slow = crowd(min(50, MOST - 2), b"GET http://allowed.example/ HTTP/1.1\r\n")
    with stage.dial() as silent, stage.dial() as hello:
        hello.sendall(CONNECT.replace(b"8080", b"443"))
        assert b" 200 " in hello.recv(4096)
        alive = list(slow)
        began = time.monotonic()
        while alive and time.monotonic() - began < 60:
            time.sleep(1)
            for sock in list(alive):
                try:
                    sock.sendall(b"X: y\r\n")
                except OSError:
                    alive.remove(sock)
        assert not alive
        assert stages.heard(silent) == b""
        assert stages.heard(hello) == b""


def test_endless_head_is_cut_off(stage):
    with stage.dial() as sock:
        sock.sendall(b"GET http://allowed.example/ HTTP/1.1\r\n")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):  # noqa: PT012
            for _ in range(100):
                sock.sendall(b"X: " + b"y" * 60_000 + b"\r\n")
                time.sleep(0.01)


@pytest.mark.parametrize("url", ["http://allowed.example", "https://allowed.example"])
@pytest.mark.parametrize("proxy", [stages.PROXY, None])
def test_large_transfer(stage, url, proxy):
    result = stage.curl(f"{url}/bytes/{BYTES}", "-o", "/dev/null", "-w", "%{size_download}",
                        proxy=proxy)  # fmt: skip
    assert (result.returncode, result.stdout) == (0, str(BYTES))
    assert stage.attempt(place="allowed.example").received >= BYTES


def test_server_dies_in_the_middle(stage):
    def begin(*argv):
        sock = stage.dial()
        sock.sendall(*argv)
        return sock

    plain = begin(b"GET http://allowed.example/hang HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
    tunnel = begin(CONNECT)
    with plain, tunnel:
        assert b" 200 " in plain.recv(4096)
        assert b" 200 " in tunnel.recv(4096)
        os.kill(stage.pids["internet"], signal.SIGKILL)
        assert b"hello" not in stages.heard(plain)
        assert stages.heard(tunnel) == b""
    stages.wait_for(lambda: all(a.took_s is not None for a in stage.attempts() if a.allowed))
    assert stage.curl("http://allowed.example/").stdout.startswith("atoll: `allowed.example`: ")


def test_daemon_dies_in_the_middle(stage):
    """Nothing leaves without it, and what it had begun is in the journal."""
    with stage.dial() as sock:
        sock.sendall(CONNECT)
        assert b" 200 " in sock.recv(4096)
        sock.sendall(b"ping")
        assert sock.recv(100) == b"ping"
        os.kill(stage.pids["exits"], signal.SIGKILL)
        assert stages.heard(sock) == b""
    (found,) = stage.attempts()
    assert (found.place, found.allowed, found.took_s) == ("allowed.example", True, None)
    assert stage.curl("http://allowed.example/hello").returncode == 7
    assert stage.curl("http://allowed.example/hello", proxy=None).returncode == 6
    assert stage.curl("http://93.184.216.34/", proxy=None, capsule="wide").returncode == 7


def test_silent_names_of_one_capsule_do_not_hold_up_another(stage):
    stage.allow("*.silent.example", "silent.example", "allowed.example")
    made = []
    for number in range(64):
        sock = stage.dial()
        made.append(sock)
        name = b"n%d.silent.example" % number
        sock.sendall(b"CONNECT %b:443 HTTP/1.1\r\nHost: %b\r\n\r\n" % (name, name))
    assert seconds(stage, "https://allowed.example/hello", capsule="wide") < 1.5
    for sock in made:
        sock.close()
