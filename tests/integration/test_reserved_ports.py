"""The daemon's ports inside a capsule: no process inside can take one."""

from __future__ import annotations

import errno
import os
import signal
import socket

import pytest

from atoll.keeper.networks import CAUGHT_PORT, NAMES_PORT, PROXY_PORT
from persons import as_user

STEALS = """
import itertools, socket
stolen = []
places = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET, ""),
          (socket.AF_INET6, "::1"), (socket.AF_INET6, "::")]
flags = list(itertools.product((0, 1), repeat=3))
for kind, port in PORTS:
    for (family, place), (reuses_address, reuses_port, only) in itertools.product(places, flags):
        with socket.socket(family, kind) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuses_address)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuses_port)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
            try:
                sock.bind((place, port))
                if kind == socket.SOCK_STREAM:
                    sock.listen()
            except OSError:
                continue
            stolen.append((kind, port, place))
print(sorted(set(stolen)))
"""
ALL = [
    *((int(socket.SOCK_STREAM), port) for port in (PROXY_PORT, CAUGHT_PORT, NAMES_PORT)),
    (int(socket.SOCK_DGRAM), NAMES_PORT),
]
PROBES = """
import socket
said = []
for port in PORTS:
    with socket.socket() as sock:
        sock.settimeout(30)
        said.append(sock.connect_ex(("127.0.0.1", port)))
        if port == PROXY and not said[-1]:
            # SOCKS: its end waits for what comes next, and answers.
            sock.sendall(bytes([5, 1, 0]))
            said += sock.recv(2)
            sock.sendall(bytes([5, 1, 0, 3, 12]) + b"nope.example" + bytes([0, 80]))
            said.append(sock.recv(2)[1])
with socket.socket(type=socket.SOCK_DGRAM) as sock:
    sock.settimeout(30)
    sock.connect(("198.18.0.1", 53))
    sock.send(bytes(12))
    try:
        said.append(len(sock.recv(100)))
    except ConnectionRefusedError as error:
        said.append(error.errno)
print(said)
"""
REFUSED = 111
SERVED = str([0, 5, 0, 2, 0, 0, 12])
"""Connected, the two answers of SOCKS, connected twice, and the length of an answer to nothing."""


def script(text: str, ports: list) -> str:
    return f"PROXY, PORTS = {PROXY_PORT}, {ports!r}\n{text}"


def steal(person, ports=ALL) -> str:
    return person.atoll("run", "x", "--", "python3", "-c", script(STEALS, ports)).stdout.strip()


def probe(person) -> str:
    ports = [PROXY_PORT, CAUGHT_PORT, NAMES_PORT]
    return person.atoll("run", "x", "--", "python3", "-c", script(PROBES, ports)).stdout.strip()


@as_user
def test_ports_without_a_daemon_are_refused_and_cannot_be_taken(person):
    person.atoll("new", "x")
    assert probe(person) == str([REFUSED] * 4)
    assert steal(person) == "[]"
    # The control: the same script takes a port that is not kept.
    assert "0.0.0.0" in steal(person, [(1, 62_999), (2, 62_999)])


@as_user
def test_ports_of_a_daemon_cannot_be_taken_before_and_after_it_is_killed(person, wait_for):
    person.wants_daemon()
    person.atoll("new", "x")
    person.atoll("run", "-d", "x", "--", "sleep", "600")
    first = person.answer("daemon", "status")
    assert [capsule["problems"] for capsule in first["capsules"]] == [{}]
    assert steal(person) == "[]"
    assert probe(person) == SERVED
    os.kill(first["pid"], signal.SIGKILL)
    assert steal(person) == "[]"
    wait_for(lambda: person.answer("daemon", "status")["pid"] != first["pid"], what="a worker")
    assert steal(person) == "[]"
    assert probe(person) == SERVED
    (capsule,) = person.answer("daemon", "status")["capsules"]
    assert capsule["problems"] == {}


@pytest.mark.parametrize("reuses", [True, False])
def test_datagrams_are_stolen_where_both_reuse_the_address(reuses):
    """The control: what the daemon's socket did before, and what it does now."""
    with socket.socket(type=socket.SOCK_DGRAM) as first, \
         socket.socket(type=socket.SOCK_DGRAM) as second, \
         socket.socket(type=socket.SOCK_DGRAM) as asker:  # fmt: skip
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuses)
        first.bind(("127.0.0.1", 0))
        second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not reuses:
            with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
                second.bind(first.getsockname())
            return
        second.bind(first.getsockname())
        asker.sendto(b"?", first.getsockname())
        second.settimeout(10)
        assert second.recv(1) == b"?"
        first.setblocking(False)
        with pytest.raises(BlockingIOError):
            first.recv(1)
