"""The broker of a real capsule: programs need to know nothing about it."""

from __future__ import annotations

import http.server
import json
import os
import signal
import threading
from contextlib import contextmanager

from persons import as_both, as_user
from present import present

REAL = "real-value-of-the-owner"
SCRIPT = """
import json, os, subprocess, time, urllib.error, urllib.request

def ask(path):
    key = os.environ["API_KEY"]
    request = urllib.request.Request("https://api.example.org" + path, headers={"X-Api-Key": key})
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError as error:
        return str(error.reason)

curl = ["curl", "-s", "--noproxy", "*", "-o", "/dev/null", "-w", "%{http_version} %{http_code}"]
curl += ["-H", "Authorization: Bearer " + os.environ["API_KEY"], "https://api.example.org/v1/curl"]
found = [ask("/v1/python"), ask("/v2"), subprocess.run(curl, capture_output=True, text=True).stdout]
print(json.dumps(found), flush=True)
while not os.path.exists('go'):
    time.sleep(0.05)
print(json.dumps(ask("/v1/revoked")), flush=True)
"""


class Server(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Upstream)
        self.seen: list[tuple[str, str | None]] = []


class Upstream(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        key = self.headers.get("X-Api-Key") or self.headers.get("Authorization")
        self.server.seen.append((self.path, key))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def upstream():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@as_both
def test_unmodified_clients(person):
    person.wants_daemon()
    with upstream() as server:
        place = f"http://127.0.0.1:{server.server_address[1]}/base"
        words = ["--broker", "api.example.org", "--upstream", place, "--allow-request", "GET /v1/*"]
        person.atoll("secret", "set", "API_KEY", *words, input=REAL)
        person.atoll("new", "x")
        person.atoll("secret", "grant", "API_KEY", "x")
        with person.popen("run", "x", "--", "python3", "-c", SCRIPT) as run:
            assert json.loads(present(run.stdout).readline()) == [200, 403, "2 200"]
            # The run goes on, and the host, which no other rule allows, is out of its reach.
            person.atoll("secret", "revoke", "API_KEY", "x")
            person.sh("x", "touch go")
            assert "403" in json.loads(present(run.stdout).readline())
        assert server.seen == [("/base/v1/python", REAL), ("/base/v1/curl", f"Bearer {REAL}")]
    lines = person.atoll("network", "x").stdout
    assert "GET /v1/python with `API_KEY`, " in lines
    assert "GET /v2: not allowed for `API_KEY`: no rule allows it" in lines
    directory = next((person.home / "projects").glob("*/x/broker"))
    assert {path.name for path in directory.iterdir()} >= {"ca.key", "ca.pem"}
    person.atoll("rm", "x", "--force")
    assert not directory.exists(), "the CA dies with the capsule"


ASK = """
import os, urllib.error, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
url = "http://127.0.0.1:62001/broker/API_KEY/x"
request = urllib.request.Request(url, headers={"X-Api-Key": os.environ["API_KEY"]})
try:
    print(opener.open(request).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


@as_user
def test_unlocked_vault_survives_the_worker_and_not_the_lock(person, wait_for):
    person.wants_daemon()

    def ask() -> str:
        return person.atoll("run", "x", "--", "python3", "-c", ASK).stdout

    def replace_worker() -> None:
        worker = person.answer("daemon", "status")["pid"]
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: person.answer("daemon", "status")["pid"] != worker, what="another worker")

    with upstream() as server:
        place = f"http://127.0.0.1:{server.server_address[1]}"
        words = ["--broker", "api.example.org", "--upstream", place]
        person.atoll("secret", "set", "API_KEY", *words, input=REAL)
        person.atoll("secret", "passphrase", input="horse\n")
        secret = {"ATOLL_PASSPHRASE": "horse"}
        person.atoll("new", "x", env=secret)
        person.atoll("secret", "grant", "API_KEY", "x", env=secret)
        person.atoll("secret", "unlock", env=secret)
        assert ask() == "200\n"
        replace_worker()
        assert ask() == "200\n"
        person.atoll("secret", "lock")
        replace_worker()
        assert ask() == "503\n"
        assert [key for _, key in server.seen] == [REAL, REAL]
