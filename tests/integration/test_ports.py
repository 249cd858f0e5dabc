"""Ports as leases: distinct, lasting, returned; and held against strangers while a run lives."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atoll.engine.network import ports as engine_ports
from atoll.testing.faults import left_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SERVICES = """
[services.web]
command = "true"
port = 3000
[services.api-v2]
command = "true"
port = 3001
"""
SERVER = """
import os, socket, sys, time
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", int(os.environ["PORT"])))
server.listen()
open("listening", "w").close()
while True:
    client, _ = server.accept()
    client.sendall(os.environ["ATOLL_CAPSULE"].encode())
    client.close()
"""


@pytest.fixture
def ask(atoll: Callable[..., Any], repo: Path) -> Callable[..., Any]:
    """`ask("ls")`: the data of a verb's JSON answer."""

    def ask(*args: str) -> Any:
        return json.loads(atoll(*args, "--json", cwd=repo).stdout)["data"]

    return ask


@pytest.fixture
def ports(ask: Callable[..., Any]) -> Callable[[], dict[str, dict[str, int]]]:
    return lambda: {capsule["name"]: capsule["ports"] for capsule in ask("ls")}


@pytest.fixture
def free(atoll: Callable[..., Any], repo: Path, atoll_home: Path) -> Iterator[None]:
    """Ends what a test has started in the background."""
    yield
    for capsule in json.loads(atoll("ls", "--json", cwd=repo).stdout)["data"]:
        atoll("stop", capsule["name"], cwd=repo)
    assert left_processes(atoll_home) == []


def find_bind_error(port: int, *, address: str = "127.0.0.1", reuse: bool = False) -> int | None:
    """What the kernel says to a stranger who wants a port; None when it lets him."""
    with socket.socket() as sock:
        if reuse:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, port))
        except OSError as error:
            return error.errno
    return None


def test_leases_are_distinct(atoll, repo, ports):
    atoll("new", "c", "-n", "5", cwd=repo)
    leased = [port for lease in ports().values() for port in lease.values()]
    assert len(set(leased)) == len(leased) == 5
    assert all(engine_ports.FIRST <= port <= engine_ports.LAST for port in leased)


def test_range_lies_below_the_kernels_own():
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if first < 32768:
        pytest.skip("this host's own range is not the usual one")
    assert first > engine_ports.LAST


def test_leases_of_two_projects_are_distinct(atoll, make_repo, ports, repo):
    atoll("new", "a", cwd=repo)
    other = make_repo(name="other")
    found = json.loads(atoll("new", "a", "--json", cwd=other).stdout)["data"][0]["ports"]
    assert set(found.values()).isdisjoint(ports()["a"].values())


def test_lease_is_kept_over_runs(atoll, repo, ports):
    atoll("new", "x", cwd=repo)
    leased = ports()["x"]
    for _ in range(2):
        said = atoll("run", "x", "--", "sh", "-c", "echo $PORT $ATOLL_PORT_WEB", cwd=repo).stdout
        assert said.split() == [str(leased["web"])] * 2
    assert ports()["x"] == leased


def test_lease_is_returned_at_removal(atoll, repo, ports):
    atoll("new", "x", cwd=repo)
    atoll("new", "y", cwd=repo)
    before = ports()
    atoll("rm", "x", cwd=repo)
    assert ports() == {"y": before["y"]}
    atoll("new", "z", cwd=repo)
    assert ports() == {"y": before["y"], "z": before["x"]}


def test_each_service_has_a_variable(atoll, repo, ports):
    (repo / "atoll.toml").write_text(SERVICES)
    atoll("trust", cwd=repo)
    atoll("new", "x", cwd=repo)
    leased = ports()["x"]
    assert set(leased) == {"web", "api-v2"}
    assert len(set(leased.values())) == 2
    said = atoll("run", "x", "--", "env", cwd=repo).stdout.splitlines()
    variables = dict(line.split("=", 1) for line in said if "=" in line)
    assert variables["ATOLL_PORT_WEB"] == str(leased["web"])
    assert variables["ATOLL_PORT_API_V2"] == str(leased["api-v2"])
    assert variables["PORT"] == str(leased["web"])


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
@pytest.mark.parametrize("listening", [True, False])
def test_port_of_a_stranger_is_never_leased(atoll, repo, ports, address, listening):
    atoll("new", "x", cwd=repo)
    wanted = ports()["x"]["web"]
    atoll("rm", "x", cwd=repo)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            stranger.bind((address, wanted))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            pytest.skip("this host has no IPv6")
        if listening:
            stranger.listen()
        atoll("new", "x", cwd=repo)
        assert ports()["x"]["web"] != wanted


def test_held_port_is_safe_from_strangers_and_free_for_the_run(atoll, repo, ports, free, wait_for):
    atoll("new", "x", cwd=repo)
    port = ports()["x"]["web"]
    atoll("run", "x", "-d", "--", "sleep", "1000", cwd=repo)
    # Nobody listens yet, so the port is only held.
    assert find_bind_error(port) == errno.EADDRINUSE
    assert find_bind_error(port, address="0.0.0.0") == errno.EADDRINUSE
    with socket.socket() as sock, pytest.raises(ConnectionRefusedError):
        sock.connect(("127.0.0.1", port))
    workspace = Path(atoll("path", "x", cwd=repo).stdout.strip())
    (workspace / "server.py").write_text(SERVER)
    atoll("run", "x", "-d", "--", "python3", "server.py", cwd=repo)
    wait_for((workspace / "listening").exists, what="the server")
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        assert client.recv(100) == b"x"
    assert find_bind_error(port, reuse=True) == errno.EADDRINUSE


def test_held_port_is_free_when_the_run_is_over(atoll, repo, ports):
    atoll("new", "x", cwd=repo)
    atoll("run", "x", "--", "true", cwd=repo)
    assert find_bind_error(ports()["x"]["web"]) is None


def test_servers_of_two_capsules_listen_side_by_side(atoll, repo, ports, free, wait_for):
    for name in ("a", "b"):
        atoll("new", name, cwd=repo)
        workspace = Path(atoll("path", name, cwd=repo).stdout.strip())
        (workspace / "server.py").write_text(SERVER)
        atoll("run", name, "-d", "--", "python3", "server.py", cwd=repo)
        wait_for((workspace / "listening").exists, what="the server")
    for name, leased in ports().items():
        with socket.create_connection(("127.0.0.1", leased["web"]), timeout=5) as client:
            assert client.recv(100) == name.encode()


def test_no_capsule_gets_a_port_when_all_are_taken(monkeypatch, atoll_home, repo):
    """The range is empty: a clear error, and nothing is made."""
    import atoll as library  # noqa: PLC0415 - `atoll` is the program everywhere else

    project = library.open_project(repo)
    first = project.new("a")
    port = first.ports["web"]
    monkeypatch.setattr(engine_ports, "FIRST", port)
    monkeypatch.setattr(engine_ports, "LAST", port)
    with pytest.raises(library.PrerequisiteError):
        project.new("b")
    assert [capsule.name for capsule in project.capsules()] == ["a"]
    assert os.listdir(atoll_home / "locks") == []
