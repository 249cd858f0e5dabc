"""A capsule's own network with the real daemon: what gets out, what does not, and who says so.

No packet leaves the machine: what is allowed here is a port of the test's own on the loopback.
What the proxy decides about names and addresses is tried in `test_egress.py`, on a stage.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import signal
import threading
from pathlib import Path

import pytest

from persons import as_user

CURL = "curl -sS -m 20"
REFUSED = 7
"""How curl ends when nothing accepts its connection."""


class Answering(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"the owner's own\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def service():
    """Something on the host's loopback; gives its port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def online(person):
    person.wants_daemon()
    return person


def daemon_pid(person) -> int:
    return person.answer("daemon", "status")["pid"]


@as_user
def test_capsules_have_a_localhost_each(person):
    serve = "echo $0 > who; exec python3 -m http.server 3000 --bind 127.0.0.1"
    for name in ("x", "y"):
        person.atoll("new", name, "--network", "none")
        person.atoll("run", "-d", name, "--", "sh", "-c", serve, name)
    look = "until curl -sS http://localhost:3000/who 2> /dev/null; do sleep 0.1; done"
    for name in ("x", "y"):
        assert person.sh(name, look) == f"{name}\n"
        # Low ports, too.
        person.sh(name, "python3 -c 'import socket; socket.create_server((\"\", 80))'")


@as_user
def test_what_is_not_allowed_is_refused_and_written_down(online):
    online.atoll("new", "x")
    told = online.sh("x", f"{CURL} http://not-allowed.example/secret?token=1")
    assert "`not-allowed.example` is not allowed" in told
    assert "atoll allow x not-allowed.example" in told
    # Who knows no proxy is caught; who is asked for a name does not answer.
    caught = online.sh("x", "env -i curl -sS -m 20 http://198.51.100.7/")
    assert "`198.51.100.7` is not allowed" in caught
    online.sh("x", "! getent hosts not-allowed.example")
    attempts = online.atoll("network", "x").stdout
    assert "refused  http     not-allowed.example:80" in attempts
    assert "refused  caught   198.51.100.7:80" in attempts
    assert "refused  dns      not-allowed.example" in attempts
    assert "secret" not in attempts
    assert "token" not in attempts


@as_user
def test_port_of_the_host_is_granted_live_and_taken_back(online):
    with service() as port:
        online.atoll("new", "x")
        ask = f"{CURL} http://localhost:{port}/"
        assert online.atoll("run", "x", "--", "sh", "-c", ask, check=False).returncode == REFUSED
        online.atoll("allow", "x", f"host:{port}")
        assert online.sh("x", ask) == "the owner's own\n"
        assert f"allowed  host     host:{port}" in online.atoll("network", "x").stdout
        online.atoll("allow", "x", f"host:{port}", "--revoke")
        online.sh("x", f"! {ask}")


@as_user
def test_daemon_that_is_killed(online, wait_for):
    """Its worker comes back by itself, runs go on, and in between nothing gets out."""
    with service() as port:
        online.atoll("new", "x")
        online.atoll("run", "-d", "x", "--", "sleep", "600")
        online.atoll("allow", "x", f"host:{port}")
        ask = f"{CURL} http://localhost:{port}/"
        assert online.sh("x", ask) == "the owner's own\n"
        first = daemon_pid(online)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: daemon_pid(online) != first, what="another worker")
        assert online.sh("x", ask) == "the owner's own\n"
        # Both at once, and nothing starts them but a command that needs them.
        worker = daemon_pid(online)
        watcher = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        for pid in (watcher, worker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        closed = online.atoll("run", "x", "--", "sh", "-c", ask, env={"ATOLL_DAEMON": "off"},
                              check=False)  # fmt: skip
        assert closed.returncode == REFUSED, closed
        assert online.sh("x", ask) == "the owner's own\n"
        [run] = [r for r in online.answer("show", "x")["runs"] if r["state"] == "running"]
        assert run["argv"] == ["sleep", "600"]


@as_user
def test_run_may_have_no_network_at_all(online):
    with service() as port:
        online.atoll("new", "x")
        online.atoll("allow", "x", f"host:{port}")
        ask = f"{CURL} http://localhost:{port}/"
        assert online.sh("x", ask) == "the owner's own\n"
        online.sh("x", f"! {ask}", options=("--network", "none"))
        online.sh("x", "test $(wc -l < /proc/net/dev) -eq 3", options=("--network", "none"))
    refused = online.atoll("run", "--network", "opn", "x", "--", "true", check=False)
    assert refused.returncode == 2


@as_user
def test_set_up_may_have_a_wider_network(online):
    """And only the set-up: the runs have what the capsule was made with."""
    with service() as port:
        online.write(
            {
                "atoll.toml": f'[capsule]\nnetwork = "none"\nallow = ["host:{port}"]\n'
                f'setup = ["curl -sS -m 20 http://localhost:{port}/ > fetched"]\n'
                'setup_network = "allow"\n'
            }
        )
        online.atoll("trust")
        online.atoll("new", "x")
        assert online.sh("x", "cat fetched") == "the owner's own\n"
        online.sh("x", f"! {CURL} http://localhost:{port}/")


def test_without_a_daemon_nothing_gets_out(person):
    person.atoll("new", "x")
    done = person.atoll("run", "x", "--", "curl", "-sS", "http://127.0.0.1:62001/", check=False)
    assert done.returncode == REFUSED, done


@as_user
def test_no_other_user_reaches_the_daemon(online):
    online.atoll("new", "x")
    online.sh("x", "true")
    directory = online.home / "daemon"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "socket").stat().st_mode & 0o777 == 0o600
    online.sh("x", f"! ls {directory}")


def test_daemon_tells_of_itself(online):
    assert online.atoll("daemon", check=False).returncode == 1
    online.atoll("new", "x")
    online.sh("x", "true")
    told = online.answer("daemon")
    assert told["running"]
    assert [capsule["name"] for capsule in told["capsules"]] == ["x"]
    assert online.atoll("daemon", "stop").stdout == "stopped\n"
    assert online.atoll("daemon", check=False).returncode == 1


WRONG = {
    "https://example.org": 2,
    "*.org": 2,
    "host": 2,
    "127.0.0.1": 2,
    "169.254.169.254": 2,
    "exämple.org": 2,
}


@pytest.mark.parametrize("rule", WRONG)
def test_rules_that_are_none(person, rule):
    person.atoll("new", "x")
    refused = person.atoll("allow", "x", rule, check=False)
    assert refused.returncode == WRONG[rule], refused
    assert "Traceback" not in refused.stderr


def test_rule_for_a_capsule_without_egress(person):
    person.atoll("new", "x", "--network", "none")
    assert person.atoll("allow", "x", "example.org", check=False).returncode == 6
