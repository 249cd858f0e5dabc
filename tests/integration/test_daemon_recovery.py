"""The daemon goes on when a part of it no longer responds: its worker, or the holder of a view."""

from __future__ import annotations

import os
import signal
import sys
from urllib.request import ProxyHandler, build_opener

import pytest

from persons import as_user

SERVE = "echo $0 > who; exec python3 -m http.server 3000 --bind 127.0.0.1"
PING = """
import sys
from atoll.keeper import requests
with requests.connect(sys.argv[1]) as sock:
    print(requests.ask(sock, {"ping": True})[0]["pid"])
"""
DIRECT = build_opener(ProxyHandler({}))


@pytest.fixture
def online(person):
    person.wants_daemon()
    for name in ("x", "y"):
        person.atoll("new", name)
        person.atoll("run", "-d", name, "--", "sh", "-c", SERVE, name)
    return person


def worker_of(person) -> int:
    return person.answer("daemon", "status")["pid"]


def found(person) -> set[str]:
    """The capsules that the daemon looks after."""
    return {capsule["name"] for capsule in person.answer("daemon", "status")["capsules"]}


def holder_of(person, name: str) -> int:
    [directory] = person.home.glob(f"projects/*/{name}")
    return int(person.run(sys.executable, "-c", PING, directory).stdout)


def page(person, name: str) -> str | None:
    """What the capsule answers on its published port; None while there is none."""
    for row in person.answer("ports", name)["ports"]:
        if row["inside"] == 3000 and row["state"] == "listening":
            with DIRECT.open(f"http://127.0.0.1:{row['dynamic']}/who", timeout=30) as answer:
                return answer.read().decode()
    return None


def refused(person, name: str) -> bool:
    """Whether the way out is there: it says no."""
    told = person.sh(name, "curl -sS -m 20 http://not-allowed.example/")
    return "`not-allowed.example` is not allowed" in told


@as_user
def test_worker_that_no_longer_responds_is_replaced(online, wait_for):
    """The control, that it would stay otherwise, is in the unit tests of the heartbeat."""
    assert wait_for(lambda: page(online, "x"), what="the published port") == "x\n"
    worker = worker_of(online)
    os.kill(worker, signal.SIGSTOP)
    # Waits until somebody answers.
    assert worker_of(online) != worker
    assert "does not respond" in online.atoll("daemon", "logs").stdout
    assert wait_for(lambda: page(online, "x"), what="the published port") == "x\n"
    assert refused(online, "x")


@as_user
def test_holder_that_does_not_respond_delays_no_other_capsule(online, wait_for):
    assert wait_for(lambda: found(online) == {"x", "y"}, what="both capsules")
    holder, worker = holder_of(online, "x"), worker_of(online)
    os.kill(holder, signal.SIGSTOP)
    try:
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: worker_of(online) != worker, what="another worker")
        assert wait_for(lambda: page(online, "y"), what="the published port") == "y\n"
        assert refused(online, "y")
        assert found(online) == {"y"}
    finally:
        os.kill(holder, signal.SIGCONT)
    wait_for(lambda: found(online) == {"x", "y"}, what="the other capsule")
    assert wait_for(lambda: page(online, "x"), what="the published port") == "x\n"
