"""What a hostile capsule does with ports: floods of them, and ports that belong to the host."""

from __future__ import annotations

import os
import socket

import pytest

import hostile
from atoll.daemon.ports.checkout_ports import WELL_KNOWN
from atoll.daemon.ports.port_leases import MAX_PORTS
from hostile import as_both, wait_for
from worlds import free_port

owner = hostile.owner
FLOOD_PORTS = 8000
PATIENCE_S = 60.0
REQUESTS = 20
# Listens on all ports that it is given, and answers with the port.
SERVE = """
import selectors, socket, sys
selector = selectors.DefaultSelector()
for word in sys.argv[1:]:
    selector.register(socket.create_server(("127.0.0.1", int(word))), selectors.EVENT_READ, word)
while True:
    for key, _ in selector.select():
        client, _ = key.fileobj.accept()
        client.sendall(f"inside {key.data}".encode())
        client.close()
"""
# Listens on as many ports as it is given, or as it may.
FLOOD = """
import resource, signal, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
for port in range(10000, 10000 + int(sys.argv[1])):
    try: held.append(socket.create_server(("127.0.0.1", port)))
    except OSError: break
signal.pause()
"""


@pytest.fixture
def online(owner):
    """An owner with a daemon and a router of their own, which end before the owner does."""
    owner.wants_daemon()
    owner.env["ATOLL_ROUTER_PORT"] = str(free_port())
    yield owner
    if left := [one["name"] for one in owner.answer("ls")]:
        owner.atoll("rm", "--force", *left)
    owner.atoll("daemon", "stop")


def eventually(condition):
    return wait_for(condition, timeout_s=PATIENCE_S)


def serve(owner, name, *numbers):
    owner.atoll("run", "-d", name, "--", hostile.SYSTEM_PYTHON, "-c", SERVE, *map(str, numbers))


def leases(owner, name):
    """What listens in a capsule, by its number, with the port of the host."""
    rows = owner.answer("ports", name)["ports"]
    return {row["inside"]: row["dynamic"] for row in rows
            if row["state"] == "listening" and row["dynamic"]}  # fmt: skip


def leased_count(owner, name):
    return len([row for row in owner.answer("ports", name)["ports"] if row["dynamic"]])


def say(port):
    """What is said on a port of the host; None when nothing accepts."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=hostile.TIMEOUT_S) as client:
            return client.recv(100).decode()
    except ConnectionError:
        return None


@as_both
def test_flood_of_ports_does_not_stop_another_capsule(online):
    """N1. How much work a flood makes is counted in `unit/daemon/test_port_flood.py`."""
    for name in ("x", "y"):
        online.atoll("new", name)
    serve(online, "x", 8100)
    assert eventually(lambda: 8100 in leases(online, "x"))
    port = leases(online, "x")[8100]
    flood = ("--", hostile.SYSTEM_PYTHON, "-c", FLOOD, str(FLOOD_PORTS))
    online.atoll("run", "-d", "y", *flood)
    # The control: the capsule does listen on more than is published.
    count = "grep -c ' 0A ' /proc/net/tcp || true"
    assert eventually(lambda: int(online.inside(count, "y")) > 10 * MAX_PORTS)
    assert eventually(lambda: leased_count(online, "y") == MAX_PORTS)
    assert [say(port) for _ in range(REQUESTS)] == ["inside 8100"] * REQUESTS
    assert leases(online, "x") == {8100: port}


@pytest.mark.usefixtures("well_known_ports")
@as_both
def test_checked_out_capsule_takes_no_port_of_the_host_by_listening(online):
    """N2: neither that of a service of the host, nor any other that was not named."""
    service, other = free_of(WELL_KNOWN), free_port()
    wanted = [*privileged(), service, other]
    online.atoll("new", "x")
    serve(online, "x", *wanted)
    assert eventually(lambda: set(wanted) <= set(leases(online, "x")))
    said = online.atoll("checkout", "x").stderr
    for port in wanted:
        assert can_be_taken(port)
        assert f"port {port} is not published" in said
    command = next(line for line in said.splitlines() if line.strip().startswith("hint: "))
    # What this user cannot bind is not proposed.
    is_root = online.run("id", "-u").stdout == "0\n"
    proposed = sorted(wanted if is_root else [service, other])
    assert [int(word) for word in command.split() if word.isdigit()] == proposed
    # The control: what the owner names, the capsule gets.
    online.atoll("checkout", "x", "--port", str(other), "--port", str(service))
    assert (say(other), say(service)) == (f"inside {other}", f"inside {service}")
    online.atoll("checkout", "--none")
    assert can_be_taken(other)
    assert can_be_taken(service)


@pytest.mark.usefixtures("well_known_ports")
@as_both
def test_project_file_takes_no_port_of_a_service_of_the_host(online):
    """N2: the file comes with a repository, and may be anybody's."""
    service, ordinary = free_of(WELL_KNOWN), free_port()
    tables = [f'[services.{name}]\ncommand = "true"\nport = {port}\n'
              for name, port in (("web", ordinary), ("db", service))]  # fmt: skip
    online.write({"atoll.toml": "".join(tables)})
    online.atoll("trust")
    online.atoll("new", "x")
    serve(online, "x", ordinary, service)
    assert eventually(lambda: {ordinary, service} == set(leases(online, "x")))
    said = online.atoll("checkout", "x").stderr
    assert can_be_taken(service)
    assert f"port {service} is not published" in said
    # The control: a port like any other is taken because it is declared.
    assert say(ordinary) == f"inside {ordinary}"


def free_of(numbers):
    """The first from 1024 on that no process of this host has."""
    return next(port for port in numbers if port >= 1024 and can_be_taken(port))


def privileged():
    """One that root could take; an ordinary user could not in any case."""
    if os.geteuid() != 0:
        return []
    return [next(port for port in (22, 25, 53, 631) if can_be_taken(port))]


def can_be_taken(port):
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
