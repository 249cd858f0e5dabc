"""A stranger on the router's port: nothing that would lead the owner to them is handed out."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import Any

import pytest

from atoll.host.listening_sockets import family_of
from persons import as_user, require
from present import present
from worlds import free_port

NOBODY = 65_534
SQUATTER = """
import socket, sys
address, port = sys.argv[1], int(sys.argv[2])
sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
sock.bind((address, port))
sock.listen()
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def person(person):
    person.wants_daemon()
    person.env["ATOLL_ROUTER_PORT"] = str(free_port())
    person.env["DISPLAY"] = ":none"
    person.write({"atoll.toml": '[services.web]\ncommand = "true"\nport = 3000\n'})
    person.commit("service")
    person.atoll("trust")
    person.atoll("new", "one")
    return person


@contextmanager
def squatted(person, address="127.0.0.1"):
    """Another user listens on the router's port, or the same user if there is no other."""
    port, program = person.env["ATOLL_ROUTER_PORT"], require("/usr/bin/python3")
    stranger: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    with subprocess.Popen(
        [program, "-I", "-c", SQUATTER, address, port],
        cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        **(stranger if os.geteuid() == 0 else {}),
    ) as process:  # fmt: skip
        try:
            assert present(process.stdout).readline() == b"up\n"
            yield
        finally:
            process.communicate(b"")


def url(person, port=None):
    return f"http://web.one--repo.localhost:{port or person.env['ATOLL_ROUTER_PORT']}"


@as_user
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1"])
def test_no_url_and_no_profile_while_a_stranger_has_the_port(person, address):
    with socket.socket(family_of(address)) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            pytest.skip(f"this host has no {address}")
    with squatted(person, address):
        for words in (("open", "one", "web", "--print"), ("open", "one", "web")):
            done = person.atoll(*words, check=False)
            assert (done.returncode, done.stdout) == (4, "")
            assert f"port {person.env['ATOLL_ROUTER_PORT']} is in use by" in done.stderr
            assert "hint: export ATOLL_ROUTER_PORT=" in done.stderr
        assert person.answer("browser", "status", "one")["profile"] is None
        told = person.answer("ports", "one")
        assert [row["url"] for row in told["ports"]] == [None]
        assert "is in use by" in told["router"]["trouble"]
        said = person.atoll("run", "one", "--", "env")
        if os.geteuid() == 0:
            assert "ATOLL_URL" not in said.stdout
            assert "another user listens on port" in said.stderr
    # Control: without the stranger all of them are there.
    assert person.atoll("open", "one", "web", "--print").stdout == f"{url(person)}/\n"
    assert [row["url"] for row in person.answer("ports", "one")["ports"]] == [url(person)]
    assert f"ATOLL_URL_WEB={url(person)}\n" in person.atoll("run", "one", "--", "env").stdout


def test_fix_works_at_once(person):
    with squatted(person):
        done = person.atoll("open", "one", "web", "--print", check=False)
        assert done.returncode == 4
        port = free_port()
        person.env["ATOLL_ROUTER_PORT"] = str(port)
        assert person.atoll("open", "one", "web", "--print").stdout == f"{url(person, port)}/\n"
        del person.env["ATOLL_ROUTER_PORT"]
        assert person.atoll("open", "one", "web", "--print").stdout == f"{url(person, port)}/\n"


def test_network_in_which_the_router_does_not_listen_is_noticed(person):
    """There anybody else may have the port."""
    port = int(person.env["ATOLL_ROUTER_PORT"])
    person.atoll("open", "one", "web", "--print")
    done = person.run(
        "unshare", "--net", "sh", "-c", "ip link set lo up; exec \"$@\"", "sh",
        sys.executable, "-m", "atoll", "open", "one", "web", "--print", check=False,
    )  # fmt: skip
    if "unshare" in done.stderr:
        reason = "needs root, for a network of its own"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    assert (done.returncode, done.stdout) == (4, "")
    assert f"the daemon does not listen on port {port} of this network" in done.stderr
