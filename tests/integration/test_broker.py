"""The credential broker against a little internet: real clients inside, real servers outside."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, ResponseReceived, StreamEnded, StreamReset

import stages
from atoll.engine.secret import broker_ca
from atoll.model.secret import make_placeholder, marker_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOST = "allowed.example"
REAL, OTHER_REAL = "real-value-1", "real-value-2"
TIGHT, WIDE = make_placeholder(b"tight-key!"), make_placeholder(b"wide--key!")
PLACEHOLDER = marker_of(TIGHT)
BEARER = f"Authorization: Bearer {PLACEHOLDER}"
KEY = {"name": "KEY", "placeholder": TIGHT, "hosts": [HOST], "value": REAL}


@pytest.fixture(scope="module")
def whole_stage(tmp_path_factory):
    place = tmp_path_factory.mktemp("stage")
    with stages.played(place, env={"SSL_CERT_FILE": str(place / "roots.pem")}) as stage:
        yield stage


class Brokered(NamedTuple):
    stage: stages.Stage

    @property
    def place(self) -> Path:
        return self.stage.place

    def grant(self, *secrets: dict[str, Any], capsule: str = "tight") -> None:
        """From now on, instead of what was granted before."""
        fresh = self.place / capsule / "secrets.new"
        fresh.write_text(json.dumps(secrets))
        fresh.replace(self.place / capsule / "secrets.json")
        hosts = {host for secret in secrets for host in secret["hosts"]}
        if hosts:
            broker_ca.ensure_certificate(self.place / capsule, hosts)

    def ca(self, capsule: str = "tight") -> Path:
        return self.place / capsule / "broker" / "ca.pem"

    def curl(self, *argv: object, capsule: str = "tight", proxy: str | None = stages.PROXY):
        way = ["--noproxy", "*"] if proxy is None else ["--proxy", proxy]
        base = ["curl", "-sS", "--max-time", "30", "--cacert", self.ca(capsule), *way]
        return self.stage.run(*base, *argv, capsule=capsule)

    @contextlib.contextmanager
    def tls(self, *, capsule: str = "tight", alpn: str = "http/1.1") -> Iterator[ssl.SSLSocket]:
        """A connection to the broker, as a client that trusts the capsule's CA has it."""
        context = ssl.create_default_context(cafile=self.ca(capsule))
        context.set_alpn_protocols([alpn])
        sock = self.stage.dial(capsule)
        sock.sendall(f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n".encode())
        said = sock.recv(4096)
        assert said.startswith(b"HTTP/1.1 200"), said
        with context.wrap_socket(sock, server_hostname=HOST) as secured:
            assert secured.selected_alpn_protocol() == alpn
            yield secured

    def say(self, *pieces: bytes) -> bytes:
        """What the broker answers to raw bytes of HTTP/1.1 until it closes the connection."""
        with self.tls() as sock:
            for piece in pieces:
                sock.sendall(piece)
            return heard(sock)

    def seen(self, path: str) -> list[dict[str, str]]:
        """The credentials with which the server got requests for a path."""
        lines = [line.split(" ", 2) for line in self.stage.log("credentials")]
        return [json.loads(found) for _, where, found in lines if where == path]

    def logged(self, path: str, **wanted: object):
        """The broker's last line in the egress log that names a path."""

        def find():
            found = [a for a in self.stage.attempts() if a.via == "broker" and path in a.why]
            found = [a for a in found if wanted.items() <= a._asdict().items()]
            found = [a for a in found if a.took_s is not None or not a.allowed]
            return found[-1] if found else None

        return stages.wait_for(find)


def heard(sock: ssl.SSLSocket) -> bytes:
    said = b""
    with contextlib.suppress(ConnectionResetError, ssl.SSLError):
        while data := sock.recv(1 << 16):
            said += data
    return said


def head(method: str, target: str, *fields: str, host: str = HOST) -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {host}", *fields, "", ""]).encode()


def status(said: bytes) -> int:
    return int(said.split(b" ")[1])


def problem(said: str | bytes) -> str:
    text = said.decode() if isinstance(said, bytes) else said
    found = json.loads(text[text.index("{") :])
    assert found["error"]["type"] == "atoll"
    return found["error"]["message"]


@pytest.fixture
def brokered(whole_stage):
    whole_stage.allow(HOST, "denied.example", "closed.example", "expired.example")
    whole_stage.allow(mode="open", capsule="wide")
    found = Brokered(whole_stage)
    found.grant(KEY)
    found.grant(capsule="wide")
    return found


# What works


@pytest.mark.parametrize("proxy", [stages.PROXY, f"socks5h://127.0.0.1:{stages.PROXY_PORT}", None])
@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_real_value_reaches_the_server(brokered, proxy, version):
    path = f"/hello?way={version}{proxy}"
    result = brokered.curl(version, "-H", BEARER, f"https://{HOST}{path}", proxy=proxy)
    assert (result.returncode, result.stdout) == (0, f"hello {HOST}\n")
    assert brokered.seen(path) == [{"authorization": f"Bearer {REAL}"}]


def test_other_hosts_stay_end_to_end_and_get_the_placeholder(brokered):
    argv = ["-H", BEARER, "https://denied.example/other"]
    result = brokered.curl("--cacert", brokered.place / "cert.pem", *argv)
    assert result.stdout == "hello denied.example\n"
    assert brokered.seen("/other") == [{"authorization": f"Bearer {PLACEHOLDER}"}]
    result = brokered.curl(*argv)
    assert result.returncode == 60, "the capsule's CA vouches for no other host"


def test_redirect_to_another_host_carries_the_placeholder_only(brokered):
    both = brokered.place / "both.pem"
    both.write_bytes(brokered.ca().read_bytes() + (brokered.place / "cert.pem").read_bytes())
    url = f"https://{HOST}/elsewhere/denied.example/landed"
    result = brokered.curl("--cacert", both, "-L", "--location-trusted", "-H", BEARER, url)
    assert result.stdout == "hello denied.example\n"
    assert brokered.seen("/elsewhere/denied.example/landed") == [
        {"authorization": f"Bearer {REAL}"}
    ]
    assert brokered.seen("/landed") == [{"authorization": f"Bearer {PLACEHOLDER}"}]


def test_answers_do_not_repeat_the_real_value(brokered):
    result = brokered.curl("-i", "-H", BEARER, f"https://{HOST}/reflect/?key={PLACEHOLDER}")
    assert brokered.seen(f"/reflect/?key={REAL}") == [{"authorization": f"Bearer {REAL}"}]
    assert REAL not in result.stdout
    assert f"x-echo: Bearer {PLACEHOLDER}" in result.stdout
    assert f'"path": "/reflect/?key={PLACEHOLDER}"' in result.stdout
    # A session cookie would be a real credential.
    assert "session" not in result.stdout
    assert "alt-svc" not in result.stdout


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_streams_do_not_repeat_the_real_value(brokered, version):
    argv = [version, "-i", "-H", BEARER, "-H", f"X-Odd: {PLACEHOLDER}", "--compressed"]
    result = brokered.curl(*argv, f"https://{HOST}/reflect-in-pieces/{version}")
    assert brokered.seen(f"/reflect-in-pieces/{version}") == [{"authorization": f"Bearer {REAL}"}]
    assert REAL not in result.stdout
    said = json.loads(result.stdout[result.stdout.index("{") :])
    assert (said["x-odd"], said["accept-encoding"]) == (PLACEHOLDER, "identity")


def test_answer_that_becomes_longer_is_whole(brokered):
    """Its length is not known before; what is held of it is bounded."""
    brokered.grant({**KEY, "value": "12345678"})
    (brokered.place / "numbers").write_text("12345678" * 8000)
    body = ["--data-binary", f"@{brokered.place}/numbers"]
    said = brokered.curl("-H", BEARER, *body, f"https://{HOST}/numbers").stdout
    assert said == PLACEHOLDER * 8000
    said = brokered.curl("-H", BEARER, "-d", "12345678", "-i", f"https://{HOST}/numbers").stdout
    assert f"content-length: {len(PLACEHOLDER)}\n" in said.lower()


@pytest.mark.parametrize("name", ["Range", "range", "Request_Range"])
def test_parts_of_an_answer_are_not_asked_for_with_a_real_value(brokered, name):
    argv = ["-H", f"{name}: bytes=0-20", "-H", "If_Range: x"]
    said = json.loads(brokered.curl("-H", BEARER, *argv, f"https://{HOST}/part/of").stdout)
    assert said["authorization"] == f"Bearer {PLACEHOLDER}"
    assert not {"range", "request-range", "request_range", "if_range"} & said.keys()
    # A server that sends one all the same is not believed.
    said = brokered.curl("-H", BEARER, f"https://{HOST}/part/always")
    assert "a part of a response" in problem(said.stdout)
    # Without a real value there is nothing to hide.
    said = brokered.curl("-H", "Range: bytes=0-20", "-w", "%{http_code}", f"https://{HOST}/part/of")
    assert said.stdout.endswith("206")


def test_only_plain_answers_are_asked_for_with_a_real_value(brokered):
    argv = ["-H", "Accept-Encoding: gzip", "-H", "Accept_Encoding: br", "-H", "A-IM: gzip"]
    said = json.loads(brokered.curl("-H", BEARER, *argv, f"https://{HOST}/headers").stdout)
    assert said["accept-encoding"] == "identity"
    assert not {"accept_encoding", "a-im"} & said.keys()


def test_answers_do_not_grow_by_what_the_client_sent(brokered):
    """A long token may not come back for each occurrence of a short real value."""
    brokered.grant({**KEY, "value": "12345678"})
    more = " ".join([PLACEHOLDER] * 60)
    argv = ["--http1.1", "-H", f"X-Token: {PLACEHOLDER}{'A' * 30_000}", "-H", f"X-More: {more}"]
    said = brokered.curl(*argv, f"https://{HOST}/headers").stdout
    assert said.count(PLACEHOLDER) == 61
    assert len(said) < 10_000


def test_basic_authentication_and_unknown_headers(brokered):
    brokered.curl("-u", f"user:{PLACEHOLDER}", f"https://{HOST}/basic")
    brokered.curl("-H", f"X-Token: {PLACEHOLDER}", f"https://{HOST}/token")
    brokered.curl("-A", PLACEHOLDER, f"https://{HOST}/agent")
    assert brokered.seen("/basic") == [{"authorization": "Basic dXNlcjpyZWFsLXZhbHVlLTE="}]
    assert brokered.seen("/token") == [{"x-token": REAL}]
    result = brokered.curl("-A", PLACEHOLDER, f"https://{HOST}/headers")
    assert json.loads(result.stdout)["user-agent"] == PLACEHOLDER


def test_refused_login_is_passed_on(brokered):
    result = brokered.curl("-w", "%{http_code}", f"https://{HOST}/private")
    assert result.stdout == "private\n401"
    result = brokered.curl("-w", "%{http_code}", "-H", BEARER, f"https://{HOST}/private")
    assert result.stdout == "private\n200"


def test_base_url(brokered):
    base = f"http://127.0.0.1:{stages.PROXY_PORT}/broker"
    said = brokered.stage.curl("-H", BEARER, f"{base}/KEY/based?x=1", proxy=None)
    assert said.stdout == f"hello {HOST}\n"
    assert brokered.seen("/based?x=1") == [{"authorization": f"Bearer {REAL}"}]
    said = brokered.stage.curl(f"{base}/NOKEY/based", proxy=None)
    assert problem(said.stdout) == "atoll: no secret `NOKEY` is brokered for this capsule"


@pytest.mark.parametrize("fields", [["Content-Length: 5"], ["Transfer-Encoding: chunked"]])
def test_keep_alive_bodies_and_expectations(brokered, fields):
    body = b"hello" if "Length" in fields[0] else b"2\r\nhe\r\n3\r\nllo\r\n0\r\nX-End: 1\r\n\r\n"
    with brokered.tls() as sock:
        for _ in range(2):
            sock.sendall(head("POST", "/kept", *fields, "Expect: 100-continue", BEARER))
            assert sock.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
            sock.sendall(body)
            said = b""
            while not said.endswith(b"hello"):
                said += sock.recv(4096)
            assert said.startswith(b"HTTP/1.1 200 OK\r\n"), said


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_large_bodies_in_both_directions(brokered, version):
    file = brokered.place / "large"
    file.write_bytes(bytes(range(256)) * 20_000)
    got = brokered.place / "got"
    argv = ["--data-binary", f"@{file}", "-H", "Expect:", "-o", got, f"https://{HOST}/large"]
    assert brokered.curl(version, *argv).returncode == 0
    assert got.read_bytes() == file.read_bytes()


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_odd_responses(brokered, version):
    for kind, expected in (("chunked", "hello world"), ("early", "late\n"), ("empty", ""),
                           ("endless", "until the end")):  # fmt: skip
        result = brokered.curl(version, f"https://{HOST}/{kind}")
        assert (result.returncode, result.stdout) == (0, expected), kind
    result = brokered.curl(version, "-I", f"https://{HOST}/hello")
    assert "content-length: 6" in result.stdout.lower()
    assert brokered.curl(version, f"https://{HOST}/cut/50000").returncode != 0
    result = brokered.curl(version, f"https://{HOST}/contradiction")
    assert problem(result.stdout) == "atoll: the server sent no valid HTTP response"


def test_events_are_not_buffered(brokered):
    """The server sends the second event once the client has acknowledged the first."""
    with brokered.tls() as sock:
        sock.sendall(head("GET", "/events", BEARER))
        said = b""
        while b"data: first\n\n" not in said:
            said += sock.recv(4096)
        assert b"second" not in said
        brokered.curl(f"https://{HOST}/acknowledge")
        while b"0\r\n\r\n" not in said:
            said += sock.recv(4096)
        assert b"data: second\n\n" in said


def test_websocket(brokered):
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", BEARER)
    with brokered.tls() as sock:
        sock.sendall(head("GET", "/socket", *upgrade))
        said = b""
        while not said.endswith(b"\r\n\r\nhi"):
            said += sock.recv(4096)
        assert said.startswith(b"HTTP/1.1 101 ")
        for _ in range(3):
            sock.sendall(b"\x81\x03abc")
            assert sock.recv(100) == b"\x81\x03abc"
        brokered.grant()
        # It ends within a second, also without another frame.
        assert heard(sock) == b""
    assert brokered.seen("/socket")[-1] == {"authorization": f"Bearer {REAL}"}


PYTHON = """
import os, ssl, sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]})
print(urllib.request.urlopen(request).read().decode(), end="")
"""
NODE = """
fetch(process.argv[1], {headers: {authorization: "Bearer " + process.argv[2]}})
  .then((response) => response.text()).then((text) => process.stdout.write(text));
"""


@pytest.mark.parametrize("proxy", [stages.PROXY, ""])
def test_python(brokered, proxy):
    env = {"SSL_CERT_FILE": str(brokered.ca()), "https_proxy": proxy}
    argv = ["python3", "-c", PYTHON, f"https://{HOST}/python{len(proxy)}", PLACEHOLDER]
    result = brokered.stage.run(*argv, env=env)
    assert result.stdout == f"hello {HOST}\n", result.stderr
    assert brokered.seen(f"/python{len(proxy)}") == [{"authorization": f"Bearer {REAL}"}]


def test_node(brokered, require_tool):
    require_tool("node")
    argv = ["node", "-e", NODE, f"https://{HOST}/node", PLACEHOLDER]
    result = brokered.stage.run(*argv, env={"NODE_EXTRA_CA_CERTS": str(brokered.ca())})
    assert result.stdout == f"hello {HOST}\n", result.stderr
    assert brokered.seen("/node") == [{"authorization": f"Bearer {REAL}"}]


def test_git_is_limited_to_one_repository(brokered, git, repo):
    brokered.grant({**KEY, "repository": "owner/shop"})
    served = brokered.place / "served" / "owner"
    for name in ("shop", "other"):
        git("clone", "--quiet", "--bare", repo, served / f"{name}.git", cwd=repo)
        git("config", "http.receivepack", "true", cwd=served / f"{name}.git")
    env = {"https_proxy": stages.PROXY, "GIT_SSL_CAINFO": str(brokered.ca()),
           "GIT_CONFIG_GLOBAL": "/dev/null"}  # fmt: skip
    url = f"https://x:{PLACEHOLDER}@{HOST}/owner"
    work = brokered.place / "clone"
    result = brokered.stage.run("git", "clone", "--quiet", f"{url}/shop.git", work, env=env)
    assert (result.returncode, result.stderr) == (0, "")
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    (work / "new.txt").write_text("new\n")
    for argv in (["add", "new.txt"], [*author, "commit", "--quiet", "-m", "new"], ["push", "-q"]):
        result = brokered.stage.run("git", "-C", work, *argv, env=env)
        assert result.returncode == 0, result.stderr
    assert "new" in git("log", "--format=%s", "main", cwd=served / "shop.git")
    assert REAL not in (work / ".git" / "config").read_text()
    for other in ("other.git", "shop.git/../other.git", "shopper"):
        result = brokered.stage.run("git", "ls-remote", f"{url}/{other}", env=env)
        assert result.returncode, other
        assert "403" in result.stderr
    result = brokered.curl("-H", BEARER, f"https://{HOST}/user/keys")
    assert "only git requests for `owner/shop`" in problem(result.stdout)
    shutil.rmtree(work)


# What is refused


@pytest.mark.parametrize(
    "argv",
    [
        ["-H", "x-api-key: sk-somebody-else"],
        ["-H", "Authorization: Bearer sk-somebody-else"],
        ["-H", f"Authorization: Bearer {marker_of(WIDE)}"],
        ["-H", f"Authorization: Bearer sk-somebody-else, {PLACEHOLDER}"],
        ["-H", BEARER, "-H", "x-api-key: sk-somebody-else"],
        ["-u", "user:ghp_somebody"],
        ["-b", "session=somebody"],
        ["-b", f"a={PLACEHOLDER}; session=somebody"],
        ["-G", "-d", "key=somebody"],
        ["-G", "-d", f"key={PLACEHOLDER}", "-d", "%6bey=somebody"],
    ],
)
@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_foreign_credentials(brokered, argv, version):
    result = brokered.curl(version, *argv, f"https://{HOST}/foreign")
    assert "credential that is not a placeholder of this capsule" in problem(result.stdout)
    assert not [line for line in brokered.stage.log("web") if "/foreign" in line]


RULES = {**KEY, "allow": ["POST /v1/*", "GET /v1/models"], "deny": ["* /v1/files*"]}


@pytest.mark.parametrize(
    ("method", "target", "is_fine"),
    [
        ("POST", "/v1/messages?beta=true", True),
        ("GET", "/v1/models", True),
        ("POST", "/v1/%6Dessages", True),
        ("GET", "/v1/messages", False),
        ("GET", "/v1/models/x", False),
        ("DELETE", "/v1/messages", False),
        ("POST", "/v1/files", False),
        ("POST", "/v1/%66iles", False),
        ("POST", "/v1/./files", False),
        ("POST", "/v1//files", False),
        ("POST", "/v1/x/../../v2/admin", False),
        ("POST", "/v1/x/%2e%2e/%2e%2e/v2/admin", False),
        ("POST", "/v1/..%2f..%2fv2/admin", False),
        ("POST", "/v1/x/..;/..;/v2/admin", False),
        ("POST", "/v1/%252e%252e/v2", False),
        ("POST", "/v1\\..\\v2", False),
        ("POST", "/v1/%00", False),
        ("POST", "/v1/%zz", False),
        ("POST", "/v1/x#/v2", False),
        ("POST", f"https://{HOST}/v1/x", False),
        ("POST", "//v1/x", False),
        ("TRACE", "/v1/x", False),
        ("OPTIONS", "*", False),
    ],
)
def test_rules(brokered, method, target, is_fine):
    brokered.grant(RULES)
    said = brokered.say(head(method, target, BEARER, "Content-Length: 0", "Connection: close"))
    assert status(said) == 200 if is_fine else status(said) in (400, 403, 405), said
    if not is_fine:
        assert not [line for line in brokered.stage.log("web") if line.endswith(f" {target}")]


def test_method_override_is_refused(brokered):
    brokered.grant(RULES)
    argv = ["-H", BEARER, "-H", "X-HTTP-Method-Override: DELETE", "-d", "x"]
    result = brokered.curl(*argv, f"https://{HOST}/v1/messages")
    assert "x-http-method-override" in problem(result.stdout)


@pytest.mark.parametrize(
    "said",
    [
        head("POST", "/smuggled", "Content-Length: 4", "Transfer-Encoding: chunked"),
        head("POST", "/smuggled", "Content-Length: 4", "Content-Length: 5"),
        head("POST", "/smuggled", "Transfer-Encoding: chunked, identity"),
        head("POST", "/smuggled", "Transfer-Encoding : chunked"),
        head("GET", "/smuggled", f"Host: {HOST}"),
        head("GET", "/smuggled", host="denied.example"),
        head("GET", "/smuggled", host=f"{HOST}:8443"),
        head("GET", "/smuggled", host=f"denied.example@{HOST}"),
        head("GET", "/smuggled", "X: a\nTransfer-Encoding: chunked"),
        head("GET", "/smuggled", "X: a\rY: b"),
        head("GET", "/smuggled", "X: a", " folded"),
        f"GET /smuggled HTTP/1.1\nHost: {HOST}\n\n\r\n\r\n".encode(),
        head("GET", "/smuggled x", ""),
        b"GET /smuggled HTTP/1.1\r\n\r\n",
        head("GET", "/smuggled", "X: " + "a" * 70_000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_smuggled_requests(brokered, said):
    answer = brokered.say(said, b"0\r\n\r\n")
    assert status(answer) in (400, 421), answer
    assert answer.count(b"HTTP/1.1 ") <= 2
    assert not [line for line in brokered.stage.log("web") if "/smuggled" in line]


def test_body_that_lies(brokered):
    said = brokered.say(head("POST", "/lied", "Transfer-Encoding: chunked"), b"2\r\nabc\r\n")
    assert said == b"" or status(said) == 400


def h2_exchange(brokered, headers, *, is_ended: bool = True) -> dict[str, Any]:
    """What comes of one request, whose headers are sent as they are."""
    config = H2Configuration(
        client_side=True, validate_outbound_headers=False, normalize_outbound_headers=False
    )
    connection = H2Connection(config)
    found: dict[str, Any] = {"body": b""}
    with brokered.tls(alpn="h2") as sock:
        connection.initiate_connection()
        connection.send_headers(1, headers, end_stream=is_ended)
        sock.sendall(connection.data_to_send())
        while not found.get("ended"):
            data = sock.recv(1 << 16)
            if not data:
                found["ended"] = "connection"
            for event in connection.receive_data(data) if data else ():
                match event:
                    case ResponseReceived():
                        found["status"] = int(dict(event.headers)[b":status"])
                    case DataReceived():
                        found["body"] += event.data
                    case StreamEnded() | StreamReset() | ConnectionTerminated():
                        found["ended"] = type(event).__name__
    return found


def h2_head(method="GET", path="/h2-smuggled", *more, authority=HOST, scheme="https"):
    pseudo = [(":method", method), (":scheme", scheme), (":path", path), (":authority", authority)]
    return [*pseudo, *more]


def test_h2_as_it_should_be(brokered):
    authorization = ("authorization", f"Bearer {PLACEHOLDER}")
    found = h2_exchange(brokered, h2_head("GET", "/h2-fine", authorization))
    assert (found["status"], found["body"]) == (200, f"hello {HOST}\n".encode())
    assert brokered.seen("/h2-fine") == [{"authorization": f"Bearer {REAL}"}]


@pytest.mark.parametrize(
    "headers",
    [
        h2_head(authority="denied.example"),
        h2_head(scheme="http"),
        h2_head("GET", "/h2-smuggled HTTP/1.1\r\nX: y"),
        h2_head("GET /x HTTP/1.1\r\n", "/h2-smuggled"),
        h2_head("GET", "http://denied.example/h2-smuggled"),
        h2_head("GET", "/h2-smuggled", ("host", "denied.example")),
        h2_head("GET", "/h2-smuggled", ("x", "y\r\nauthorization: z")),
        h2_head("GET", "/h2-smuggled", ("x: y\r\nz", "1")),
        h2_head("GET", "/h2-smuggled", ("transfer-encoding", "chunked")),
        h2_head("GET", "/h2-smuggled", ("connection", "authorization")),
        h2_head("GET", "/h2-smuggled", ("content-length", "7")),
        h2_head("GET", "/h2-smuggled", (":path", "/second")),
        h2_head("GET", "/h2-smuggled", (":late", "1")),
        [*h2_head()[:2], ("x", "y"), *h2_head()[2:]],
        h2_head("CONNECT", "/h2-smuggled"),
        h2_head("GET", ""),
    ],
)
def test_h2_smuggled_requests(brokered, headers):
    found = h2_exchange(brokered, headers)
    assert found.get("status", 400) in (400, 405, 421), found
    assert not [line for line in brokered.stage.log("web") if "h2-smuggled" in line]


def test_h2_stream_that_is_reset_ends_the_request(brokered):
    connection = H2Connection(H2Configuration(client_side=True))
    with brokered.tls(alpn="h2") as sock:
        connection.initiate_connection()
        connection.send_headers(1, h2_head("GET", "/events/reset"), end_stream=True)
        sock.sendall(connection.data_to_send())
        found = b""
        while b"first" not in found:
            for event in connection.receive_data(sock.recv(4096)):
                found += getattr(event, "data", None) or b""
        connection.reset_stream(1)
        sock.sendall(connection.data_to_send())
        stages.wait_for(lambda: "/events/reset" in brokered.stage.log("gone"))
        # The connection goes on.
        connection.send_headers(3, h2_head("GET", "/after"), end_stream=True)
        sock.sendall(connection.data_to_send())
        while b"hello" not in found:
            for event in connection.receive_data(sock.recv(4096)):
                found += getattr(event, "data", None) or b""


def test_requests_under_way_are_bounded_per_capsule(brokered):
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            sock = stack.enter_context(brokered.tls(alpn="h2"))
            client = H2Connection(H2Configuration(client_side=True))
            client.initiate_connection()
            for _ in range(64):
                number = client.get_next_available_stream_id()
                client.send_headers(number, h2_head("GET", "/hang/many"), end_stream=True)
            sock.sendall(client.data_to_send())
        stages.wait_for(
            lambda: sum("/hang/many" in line for line in brokered.stage.log("web")) == 256
        )
        said = brokered.say(head("GET", "/one-more", "Connection: close"))
        assert status(said) == 503
        assert "too many requests" in problem(said)
    # With their connections they have gone.
    stages.wait_for(lambda: status(brokered.say(head("GET", "/x", "Connection: close"))) == 200)


def test_placeholders_without_end_are_refused(brokered):
    many = " ".join([PLACEHOLDER] * 65)
    said = brokered.say(head("GET", "/many", f"X-Token: {many}", "Connection: close"))
    assert (status(said), problem(said)) == (400, "atoll: the request has too many placeholders")


def test_client_that_goes_ends_the_request(brokered):
    with brokered.tls() as sock:
        sock.sendall(head("GET", "/events/gone"))
        while b"first" not in sock.recv(4096):
            pass
    stages.wait_for(lambda: "/events/gone" in brokered.stage.log("gone"))


def test_plain_http_is_refused(brokered):
    result = brokered.curl("-H", BEARER, f"http://{HOST}/plain")
    assert f"secrets for `{HOST}` are brokered over TLS only" in result.stdout
    result = brokered.curl("-H", BEARER, f"http://{HOST}/plain", proxy=None)
    assert f"secrets for `{HOST}` are brokered over TLS only" in result.stdout
    assert brokered.seen("/plain") == []


def test_revocation_acts_at_once(brokered):
    with brokered.tls() as sock:
        sock.sendall(head("GET", "/hello", BEARER))
        while not (said := sock.recv(4096)).endswith(b"hello allowed.example\n"):
            assert said
        brokered.grant({**KEY, "name": "OTHER", "placeholder": WIDE})
        sock.sendall(head("GET", "/revoked", BEARER))
        said = sock.recv(4096)
        assert status(said) == 403
        brokered.grant()
        sock.sendall(head("GET", "/revoked", BEARER, "Connection: close"))
        assert b"was revoked or has expired" in heard(sock)
    assert brokered.seen("/revoked") == []


def test_two_capsules_have_their_own_grants(brokered):
    brokered.grant({**KEY, "placeholder": WIDE, "value": OTHER_REAL}, capsule="wide")
    theirs = ["-H", f"Authorization: Bearer {marker_of(WIDE)}", f"https://{HOST}/two"]
    assert brokered.curl(*theirs, capsule="wide").stdout == f"hello {HOST}\n"
    assert brokered.seen("/two") == [{"authorization": f"Bearer {OTHER_REAL}"}]
    assert "not a placeholder" in problem(brokered.curl(*theirs).stdout)
    mixed = brokered.curl("--cacert", brokered.ca("wide"), *theirs)
    assert mixed.returncode == 60, "another capsule's CA is worth nothing here"
    assert len(brokered.seen("/two")) == 1


def test_unavailable_value_names_the_cure(brokered):
    brokered.grant({**KEY, "problem": "your login of `x` has expired"})
    result = brokered.curl("-w", "%{http_code}", "-H", BEARER, f"https://{HOST}/unavailable")
    assert result.stdout.endswith("503")
    assert problem(result.stdout[:-3]) == "atoll: your login of `x` has expired"
    line = brokered.logged("/unavailable")
    assert line.failed
    assert line.why.endswith("your login of `x` has expired (log in again)")


def test_servers_that_cannot_be_trusted_or_reached(brokered):
    hosts = ["expired.example", "closed.example"]
    brokered.grant(
        {**KEY, "hosts": hosts}, {**KEY, "name": "UP", "upstream": "https://10.77.0.2:1"}
    )
    result = brokered.curl("-H", BEARER, "https://expired.example/outdated")
    assert "certificate has expired" in problem(result.stdout)
    result = brokered.curl("-H", BEARER, "https://closed.example/closed")
    assert problem(result.stdout) == "atoll: `closed.example`: connection refused"
    result = brokered.curl("-H", BEARER, f"https://{HOST}/upstream")
    assert problem(result.stdout) == f"atoll: `{HOST}`: connection refused"
    assert brokered.seen("/outdated") == []


def test_upstream_of_the_owner(brokered):
    """Any place, also one that the capsule's rules do not allow."""
    upstream = "http://93.184.216.35:80/prefix"
    brokered.grant({**KEY, "upstream": upstream})
    result = brokered.curl("-H", BEARER, f"https://{HOST}/up?x=1")
    assert result.stdout == "hello 93.184.216.35\n"
    assert brokered.seen("/prefix/up?x=1") == [{"authorization": f"Bearer {REAL}"}]
    said = brokered.say(head("GET", "/../up", BEARER, "Connection: close"))
    assert status(said) == 403


def test_client_without_the_ca_is_explained(brokered):
    result = brokered.curl("--cacert", brokered.place / "cert.pem", f"https://{HOST}/x")
    assert result.returncode == 60
    stages.wait_for(lambda: [a for a in brokered.stage.attempts() if "does not trust" in a.why])


def test_log_has_no_query_and_no_value(brokered):
    brokered.curl(
        "-H", BEARER, "-d", "body", f"https://{HOST}/logged/{'a' * 300}?key={PLACEHOLDER}"
    )
    line = brokered.logged("/logged/")
    assert (line.place, line.port, line.failed) == (HOST, 443, False)
    assert line.why.startswith("POST /logged/aaa")
    assert line.why.endswith("a… with `KEY`")
    assert line.sent > 300
    written = "".join(path.read_text() for path in (brokered.place / "tight").glob("network.*"))
    assert REAL not in written
    assert PLACEHOLDER not in written
    uses = (brokered.place / "tight" / "uses.log").read_text()
    assert "KEY used" in uses
    assert REAL not in uses
    assert socket.gethostname() not in line.why
