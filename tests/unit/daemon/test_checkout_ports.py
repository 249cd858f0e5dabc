"""Which ports of the host a checked-out capsule has: what is declared or named by the owner."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys

import pytest

from atoll.daemon.ports import checkout_ports
from atoll.daemon.ports.checkout_ports import MAX_CANONICAL, UNDECLARED, parse_named
from atoll.daemon.ports.publisher import Publisher
from atoll.engine.network.ports import FIRST, LAST
from atoll.model.daemon_messages import CheckoutRequest, parse_request
from atoll.model.errors import SpecError, StateError
from atoll.model.state import CheckoutRecord
from present import present
from worlds import Played, ask, free_port

pytestmark = pytest.mark.usefixtures("well_known_ports")


def free_among(numbers):
    """The first that no process of this host has."""
    for port in numbers:
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
            return port
    raise LookupError("no such port is free")


def free_service():
    """The port of a well-known service that does not run here."""
    return free_among(port for port in checkout_ports.WELL_KNOWN if port >= 1024)


async def attach(world, publisher, capsule, *numbers):
    inside = Played(capsule)
    for number in numbers:
        inside.doors[number] = await world.serve(f"inside {number}")
    await publisher.update(inside, inside.found())
    return inside


def reasons(told):
    refused = told["not_canonical"]
    return {} if refused is None else {row["port"]: row["reason"] for row in refused["ports"]}


def test_undeclared_port_is_taken_only_when_it_is_named(play):
    async def story(world, publisher):
        project = world.project()
        web, other = world.free_ports(2)
        fix = world.capsule(project, "fix", web=web)
        await attach(world, publisher, fix, web, other)
        told = await publisher.checkout(project.id, fix.id)
        assert await ask(web) == f"inside {web}"
        assert await ask(other) is None
        assert reasons(told) == {other: UNDECLARED}
        assert told["not_canonical"]["command"] == f"atoll checkout fix --port {other}"
        # The control: the same port, named.
        told = await publisher.checkout(project.id, fix.id, [other])
        assert await ask(other) == f"inside {other}"
        assert told["not_canonical"] is None
        assert world.session.store.checkouts() == {project.id: CheckoutRecord(fix.id, (other,))}
        # The next checkout says anew which ports it names.
        await publisher.checkout(project.id, fix.id)
        assert await ask(other) is None
        assert await ask(web) == f"inside {web}"

    play(story)


def test_port_that_begins_to_listen_later_is_not_taken(play):
    async def story(world, publisher):
        project, port = world.project(), free_port()
        fix = world.capsule(project, "fix")
        await publisher.checkout(project.id, fix.id)
        await attach(world, publisher, fix, port)
        await publisher.sync()
        assert await ask(port) is None
        assert reasons(await publisher.status(project.id)) == {port: UNDECLARED}

    play(story)


def test_named_port_is_held_before_and_after_something_listens(play):
    async def story(world, publisher):
        project, port = world.project(), free_port()
        fix = world.capsule(project, "fix")
        told = await publisher.checkout(project.id, fix.id, [port])
        assert [(r["canonical"], r["state"]) for r in told["ports"]] == [(port, "closed")]
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            socket.create_server(("127.0.0.1", port))
        inside = await attach(world, publisher, fix, port)
        assert await ask(port) == f"inside {port}"
        await publisher.update(inside, set())
        assert await ask(port) is None
        await publisher.close()
        again = Publisher(world.session)
        await attach(world, again, fix, port)
        await again.sync()
        assert await ask(port) == f"inside {port}"
        await again.close()

    play(story)


@pytest.mark.parametrize("level", ["sandbox", "worktree"])
def test_declared_port_of_a_well_known_service_has_to_be_named(play, level):
    async def story(world, publisher):
        project, port = world.project(), free_service()
        fix = world.capsule(project, "fix", level=level, db=port)
        await world.serve("shared", fix.ports["db"] if level == "worktree" else 0)
        await attach(world, publisher, fix, port)
        told = await publisher.checkout(project.id, fix.id)
        assert told["checked_out"] == "fix"
        assert await ask(port) is None
        assert reasons(told) == {port: f"it is the port of {checkout_ports.WELL_KNOWN[port]}"}
        assert told["not_canonical"]["command"] == f"atoll checkout fix --port {port}"
        # The control: the same port, named.
        await publisher.checkout(project.id, fix.id, [port])
        assert await ask(port) == ("shared" if level == "worktree" else f"inside {port}")

    play(story)


def test_declared_privileged_port_has_to_be_named(play):
    async def story(world, publisher):
        project = world.project()
        fix = world.capsule(project, "fix", web=80)
        told = await publisher.checkout(project.id, fix.id)
        assert reasons(told) == {80: "it is a privileged port"}
        assert told["missing"] == []

    play(story)


def test_reasons():
    assert checkout_ports.find_reason(22) == "it is the port of SSH"
    assert checkout_ports.find_reason(5432) == "it is the port of PostgreSQL"
    assert checkout_ports.find_reason(1023) == "it is a privileged port"
    assert checkout_ports.find_reason(FIRST) == checkout_ports.find_reason(LAST) is not None
    for port in (3000, 4200, 5000, 5173, 8000, 8080):
        assert checkout_ports.find_reason(port) is None


@pytest.mark.parametrize("kind", ["router", "lease"])
def test_port_that_atoll_uses_is_never_taken(play, kind):
    """Another capsule would answer under its URL, until the router or the lease is opened."""

    async def story(world, publisher):
        project = world.project()
        victim = world.capsule(project, "victim", web=3000)
        await publisher.sync()
        publisher.session.owner["ATOLL_ROUTER_PORT"] = str(free_port())
        await publisher.sync()
        port = publisher.router_port if kind == "router" else victim.ports["web"]
        fix = world.capsule(project, "fix", web=port)
        await attach(world, publisher, fix, port)
        told = await publisher.checkout(project.id, fix.id)
        assert await ask(port) is None
        assert list(reasons(told)) == [port]
        assert told["not_canonical"]["command"] is None
        with pytest.raises(StateError, match=str(port)):
            await publisher.checkout(project.id, fix.id, [port])
        assert await ask(port) is None
        # The control: a port like it that Atoll does not use.
        other = free_port()
        await attach(world, publisher, fix, other)
        await publisher.checkout(project.id, fix.id, [other])
        assert await ask(other) == f"inside {other}"

    play(story)


def test_level_without_a_network_of_its_own_has_declared_ports_only(play):
    async def story(world, publisher):
        project, port = world.project(), free_port()
        fix = world.capsule(project, "fix", level="worktree")
        with pytest.raises(StateError, match="not declared"):
            await publisher.checkout(project.id, fix.id, [port])
        assert world.session.store.checkouts() == {}

    play(story)


def test_checkout_has_a_bounded_number_of_ports(play):
    async def story(world, publisher):
        project = world.project()
        numbers = world.free_ports(MAX_CANONICAL + 3)
        fix = world.capsule(project, "fix", **{f"s{n}": n for n in numbers[:-1]})
        named = numbers[-1]
        told = await publisher.checkout(project.id, fix.id, [named])
        held = [port for port in numbers if publisher.checkouts.owner(port)]
        assert len(held) == MAX_CANONICAL
        assert named in held
        assert len(reasons(told)) == 3

    play(story)


def test_message_about_a_flood_is_bounded(play):
    async def story(world, publisher):
        project = world.project()
        fix = world.capsule(project, "fix")
        inside = Played(fix)
        inside.doors = dict.fromkeys(range(30_000, 32_000), 1)
        await publisher.update(inside, inside.found())
        told = await publisher.checkout(project.id, fix.id)
        assert (len(told["not_canonical"]["ports"]), told["not_canonical"]["more"]) == (8, 1992)

    play(story)


def read_ports(request):
    parsed = parse_request(request)
    assert isinstance(parsed, CheckoutRequest)
    return parse_named([*parsed.ports])


@pytest.mark.parametrize(
    "value", [None, "80", [0], [65_536], ["80"], [True], [8.0], list(range(1, 99))]
)
def test_bad_ports_of_a_request(value):
    request = {"do": "checkout", "project": "p", "capsule": 1, "ports": value}
    with pytest.raises(SpecError):
        read_ports(request)


def test_ports_of_a_request():
    assert parse_named([80, 3000, 80]) == (80, 3000)


OCCUPY = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""
DAEMON = "if False:\n    from atoll.daemon.main import main\n"


@pytest.mark.parametrize("program", [DAEMON + OCCUPY, OCCUPY])
def test_port_of_another_home_is_given_back_there(play, tmp_path, program):
    """The control is another program, which can only be ended."""
    home = f"{tmp_path}/an other"

    is_daemon = program != OCCUPY

    async def story(world, publisher):
        fix = world.capsule(world.project(), "fix", web=port)
        with pytest.raises(StateError) as caught:
            await publisher.checkout(fix.project_id, fix.id)
        hint = caught.value.hint
        assert (f"ATOLL_HOME='{home}' atoll checkout --none" in present(hint)) == is_daemon
        assert (f"kill {process.pid}" in present(hint)) != is_daemon

    argv = [sys.executable, "-I", "-c", program, home, "9"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        port = int(present(process.stdout).readline())
        try:
            play(story)
        finally:
            present(process.stdin).close()


def test_hint_names_no_port_that_this_user_may_not_bind(play):
    async def story(world, publisher):
        project, port = world.project(), free_port()
        fix = world.capsule(project, "fix", low=81)
        await attach(world, publisher, fix, 81, port)
        told = await publisher.checkout(project.id, fix.id)
        wanted = sorted(n for n in (81, port) if checkout_ports.may_bind(n, os.geteuid()))
        assert reasons(told)[81] == "it is a privileged port"
        assert told["not_canonical"]["command"] == " ".join(
            ["atoll checkout fix", *(f"--port {number}" for number in wanted)]
        )

    play(story)


def test_root_may_bind_any_port_and_others_those_that_the_kernel_says():
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", encoding="ascii") as stream:
        first = int(stream.read())
    assert checkout_ports.may_bind(1, 0)
    assert checkout_ports.may_bind(max(1, first), 1000)
    assert not checkout_ports.may_bind(first - 1, 1000)
