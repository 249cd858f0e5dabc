"""The broker of a real capsule: programs need to know nothing about it."""

from __future__ import annotations

import http.server
import json
import threading
from contextlib import contextmanager

from persons import as_both
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
