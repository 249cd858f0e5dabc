"""Programs inside that want to deceive each other, or to carry data out in names."""

from __future__ import annotations

import pytest

import stages
from atoll.daemon.egress.synthetic_addresses import FILE

LIMIT = 500
"""New names under one wildcard and in one hour."""
LEAK = ".leak.example"


@pytest.fixture
def stage(tmp_path):
    with stages.played(tmp_path / "stage") as stage:
        stage.allow("allowed.example", "denied.example")
        yield stage


ASKS = "import socket, sys; print(socket.gethostbyname(sys.argv[1]))"


def resolve(stage, name: str) -> str:
    """Empty when there is no answer."""
    return stage.run("python3", "-c", ASKS, name).stdout.strip()


def read_from(stage, address: str, name: str) -> str:
    """What a program gets that uses an address it learnt before, for that name."""
    to = ["--connect-to", f"{name}:80:{address}:80"]
    return stage.curl(*to, f"http://{name}/hello", proxy=None).stdout


def test_address_means_the_same_name_after_a_restart(stage):
    first = resolve(stage, "allowed.example")
    assert first
    with stage.restarted():
        assert resolve(stage, "denied.example") != first
        assert read_from(stage, first, "allowed.example") == "hello allowed.example\n"
        assert "not `allowed.example:80`" in read_from(stage, first, "denied.example")


def test_address_means_another_name_after_a_restart_that_forgets(stage):
    """The control: what happened before the addresses were kept."""
    first = resolve(stage, "allowed.example")
    assert first
    with stage.restarted(before=(stage.place / "tight" / FILE).unlink):
        assert resolve(stage, "denied.example") == first
        assert read_from(stage, first, "denied.example") == "hello denied.example\n"


def ask_for(stage, names) -> int:
    """Connects to many names through the proxy, and counts those that were refused."""
    refused = 0
    for name in names:
        asked = f"CONNECT {name}:443 HTTP/1.1\r\nHost: {name}:443\r\n\r\n".encode()
        with stage.dial() as sock:
            sock.sendall(asked)
            refused += b" 403 " in sock.recv(4096)
    return refused


def leaked(stage) -> set[str]:
    return {name for name in stage.log("dns") if name.endswith(LEAK)}


def test_few_names_under_a_wildcard_leave_the_machine(stage):
    stage.allow(f"*{LEAK}", "allowed.example")
    names = [f"{number:x}-secret{LEAK}" for number in range(LIMIT + 200)]
    refused = ask_for(stage, names)
    left = leaked(stage)
    assert len(left) + refused == len(names)
    assert 0 < len(left) <= LIMIT + 1

    def lines():
        return [attempt for attempt in stage.attempts() if attempt.place == f"*{LEAK}"]

    stages.wait_for(lambda: sum(attempt.times for attempt in lines()) == refused)
    assert len(lines()) < refused / 4
    # What is allowed by its own name still works.
    assert stage.curl("https://allowed.example/hello").returncode == 0


def test_names_that_are_allowed_one_by_one_all_leave(stage):
    """The control."""
    names = [f"{number:x}-secret{LEAK}" for number in range(250)]
    stage.allow(*names)
    assert ask_for(stage, names) == 0
    assert len(leaked(stage)) == len(names)


def test_long_names_under_a_wildcard_do_not_leave(stage):
    stage.allow(f"*{LEAK}")
    name = f"{'a' * 63}.{'b' * 63}.{'c' * 45}{LEAK}"
    assert ask_for(stage, [name]) == 1
    assert not resolve(stage, name)
    assert not leaked(stage)
    stage.allow(name)
    assert resolve(stage, name)
    assert ask_for(stage, [name]) == 0
    assert leaked(stage) == {name}
