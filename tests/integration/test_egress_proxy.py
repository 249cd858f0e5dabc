"""The proxy inside a capsule against a whole little internet: each attack beside its control."""

from __future__ import annotations

import json
import os
import socket
import ssl
import struct

import pytest

import stages
from atoll.keeper.networks import PROXY_PORT

SOCKS = f"socks5h://127.0.0.1:{PROXY_PORT}"
NAMES = {
    "metadata.example": ["169.254.169.254"],
    "loop.example": ["127.0.0.1", "::1"],
    "own.example": ["10.77.0.1"],
    "private.example": ["10.99.0.1"],
}
"""What the stage's name server says of them."""
WAYS = pytest.mark.parametrize("proxy", [stages.PROXY, SOCKS], ids=["http", "socks"])


@pytest.fixture(scope="module")
def whole_stage(tmp_path_factory):
    with stages.played(tmp_path_factory.mktemp("stage")) as stage:
        yield stage


@pytest.fixture
def stage(whole_stage):
    whole_stage.allow("allowed.example", "*.allowed.example")
    whole_stage.allow(mode="open", capsule="wide")
    return whole_stage


def get(target: str, host: str, *fields: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {host}", *fields, "", ""]).encode()


def status(said: bytes) -> int:
    return int(said.split(b" ")[1]) if said.startswith(b"HTTP/1.1 ") else 0


def socks(name: bytes, port: int) -> tuple[bytes, bytes]:
    return b"\5\1\0", bytes([5, 1, 0, 3, len(name)]) + name + struct.pack(">H", port)


def connected(stage, wanted: str, capsule: str = "tight") -> socket.socket:
    """A tunnel, in which nothing was said yet."""
    sock = stage.dial(capsule)
    sock.sendall(get(wanted, wanted, method="CONNECT"))
    said = sock.recv(4096)
    assert status(said) == 200, said
    return sock


def hello(name: str | None, place) -> bytes:
    context = ssl.create_default_context(cafile=place / "cert.pem")
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def is_served(said: bytes) -> bool:
    """Whether a server of TLS has answered."""
    return said.startswith(b"\x16\3")


# What is allowed works


@WAYS
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_allowed_name_is_reached(stage, proxy, scheme):
    result = stage.curl(f"{scheme}://allowed.example/hello", proxy=proxy)
    assert (result.returncode, result.stdout) == (0, "hello allowed.example\n")


@WAYS
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_other_name_is_not(stage, proxy, scheme):
    result = stage.curl(f"{scheme}://denied.example/hello", proxy=proxy)
    assert "hello" not in result.stdout
    assert "denied.example" not in stage.log("dns")
    stage.allow("denied.example")
    result = stage.curl(f"{scheme}://denied.example/hello", proxy=proxy)
    assert result.stdout == "hello denied.example\n"
    (stage.place / "dns.log").write_text("")


def test_refusal_names_the_rule_and_the_command(stage):
    said = stage.speak(get("http://denied.example:8080/secret?key=1", "denied.example:8080"))
    text = said.partition(b"\r\n\r\n")[2].decode()
    assert text == (
        "atoll: `denied.example` is not allowed\n"
        "the owner can allow it: atoll allow tight denied.example:8080\n"
    )
    said = stage.speak(get("denied.example:443", "denied.example:443", method="CONNECT"))
    assert status(said) == 403
    assert b"atoll allow tight denied.example\n" in said


def test_git_clones_through_the_proxy(stage, git, repo):
    served = stage.place / "git" / "repo.git"
    if not served.exists():
        git("clone", "--quiet", "--bare", repo, served, cwd=repo)
        git("update-server-info", cwd=served)
    environment = {"https_proxy": stages.PROXY, "GIT_SSL_CAINFO": str(stage.place / "cert.pem")}
    clone = ["git", "clone", "--quiet"]
    url = "https://{}/git/repo.git"
    good = stage.run(*clone, url.format("allowed.example"), stage.place / "c1", env=environment)
    assert (good.returncode, good.stderr) == (0, "")
    assert (stage.place / "c1" / "README.md").exists()
    bad = stage.run(*clone, url.format("denied.example"), stage.place / "c2", env=environment)
    assert bad.returncode
    assert "403" in bad.stderr


# N05, N03: addresses that are never reached, by name and by number


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("capsule", ["tight", "wide"])
def test_names_of_forbidden_addresses(stage, name, capsule):
    if capsule == "tight":
        stage.allow(f"{name}:*")
    for port in (80, 8000):
        said = stage.speak(get(f"http://{name}:{port}/", f"{name}:{port}"), capsule=capsule)
        assert status(said) == 403
        assert f"`{name}` resolves to an address that is not allowed".encode() in said
        assert b"atoll allow" not in said
        assert not [text for text in NAMES[name] if text.encode() in said]
    said = stage.speak(get(f"{name}:443", f"{name}:443", method="CONNECT"), capsule=capsule)
    assert status(said) == 403


@pytest.mark.parametrize("proxy", [stages.PROXY, None], ids=["proxy", "caught"])
@pytest.mark.parametrize("capsule", ["tight", "wide"])
def test_private_address_of_a_name_is_shown_to_the_owner_only(stage, capsule, proxy):
    if capsule == "tight":
        stage.allow("private.example", "own.example")
    for name in ("private.example", "own.example"):
        result = stage.curl("-v", f"http://{name}/", capsule=capsule, proxy=proxy)
        assert f"`{name}` resolves to an address that is not allowed" in result.stdout
        assert NAMES[name][0] not in result.stdout + result.stderr
        assert f"atoll network {capsule}" in result.stdout
        # The control: the address was found, and the owner reads which.
        assert NAMES[name][0] in stage.attempt(capsule, place=name).why


def test_own_and_other_private_addresses_look_alike(stage):
    """Which address is the host's own cannot be found out by asking for all of them."""
    said = [stage.curl(f"http://{address}:8000/", capsule="wide").stdout
            for address in ("10.77.0.1", "10.77.0.9")]  # fmt: skip
    assert said[0].replace("10.77.0.1", "10.77.0.9") == said[1]
    assert said[1].startswith("atoll: the address 10.77.0.9 is not allowed")
    # The control: they are told apart where the owner reads.
    whys = [stage.attempt("wide", place=place).why for place in ("10.77.0.1", "10.77.0.9")]
    assert "own" in whys[0]
    assert "private" in whys[1]


def test_private_address_by_its_own_rule(stage):
    stage.allow("private.example", "10.99.0.1")
    assert stage.curl("http://private.example/hello").stdout == "hello private.example\n"


def test_forbidden_address_beside_a_good_one_is_not_dialled(stage):
    stage.allow("mixed.example")
    assert stage.curl("http://mixed.example/hello").stdout == "hello mixed.example\n"
    assert stage.attempt(place="mixed.example").address == "93.184.216.34"


@pytest.mark.parametrize(
    "place",
    [
        "127.0.0.1:8000", "10.77.0.1:8000", "0.0.0.0:8000", "[::1]:8000", "[::ffff:127.0.0.1]:8000",
        "169.254.169.254:80", "100.100.100.200:80", "168.63.129.16:80", "[fd00:ec2::254]:80",
        "[::ffff:169.254.169.254]:80", "[64:ff9b::a9fe:a9fe]:80", "10.99.0.1:80", "localhost:8000",
        "198.18.0.1:80",
    ],
)  # fmt: skip
def test_forbidden_addresses_by_number(stage, place):
    for capsule in ("tight", "wide"):
        asked = get(f"http://{place}/", place)
        assert status(stage.speak(asked, capsule=capsule)) == 403
        asked = get(place, place, method="CONNECT")
        assert status(stage.speak(asked, capsule=capsule)) == 403


def test_number_is_reached_by_its_own_rule_only(stage):
    asked = get("http://93.184.216.34/hello", "93.184.216.34")
    assert status(stage.speak(asked)) == 403
    stage.allow("93.184.216.32/28")
    assert b"hello 93.184.216.34" in stage.speak(asked)
    assert stage.curl("https://93.184.216.34/hello").stdout == "hello 93.184.216.34\n"
    six = "[2606:2800:220:1::34]"
    assert status(stage.speak(get(f"http://{six}/", six))) == 403
    stage.allow(six)
    assert stage.curl(f"http://{six}/hello").stdout == f"hello {six}\n"
    assert stage.curl(f"https://{six}/hello").stdout == f"hello {six}\n"


# N08, N09: spellings


@pytest.mark.parametrize(
    "name",
    ["evilallowed.example", "allowed.example.evil.org", "xallowed.example", "allowed.exampl"],
)
def test_likeness_is_no_rule(stage, name):
    assert status(stage.speak(get(f"{name}:443", name, method="CONNECT"))) == 403
    reply = stage.speak(*socks(name.encode(), 443))
    assert reply[:4] == b"\5\0\5\2"


@pytest.mark.parametrize(
    "name",
    [
        "denied.example\0.allowed.example", "denied.example%00.allowed.example",
        "denied.example%2eallowed.example", "denied.example@allowed.example",
        "allowed.example@denied.example", "denied.example\t.allowed.example",
        "denied.example#.allowed.example", "denied.example/.allowed.example",
        "[fe80::1%25x.allowed.example]", "[::1%x.allowed.example]", "2130706433", "0x7f.1",
        "0177.0.0.1", "127.1", "denied.example\\.allowed.example", "b\xfccher.allowed.example",
        "allowed.example..", ".allowed.example",
    ],
)  # fmt: skip
def test_odd_spellings_are_refused(stage, name):
    before = len(stage.log("dns"))
    raw = name.encode("latin-1")
    said = stage.speak(b"CONNECT " + raw + b":443 HTTP/1.1\r\nHost: allowed.example:443\r\n\r\n")
    assert status(said) == 400
    if "/" not in name and "#" not in name:
        said = stage.speak(b"GET http://" + raw + b"/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
        assert status(said) == 400
    assert stage.speak(*socks(raw, 443))[:4] == b"\5\0\5\2"
    assert len(stage.log("dns")) == before


@pytest.mark.parametrize("port", ["0", "65536", "", "+443", "443 ", "0x1bb", "443.allowed.example"])
def test_odd_ports_are_refused(stage, port):
    said = stage.speak(get(f"allowed.example:{port}", "allowed.example", method="CONNECT"))
    assert status(said) == 400


def test_other_spellings_of_the_same_are_brought_into_one_form(stage):
    with connected(stage, "ALLOWED.Example.:443") as sock:
        sock.sendall(hello("allowed.example", stage.place))
        assert is_served(stages.heard(sock, quiet_s=1))
    said = stage.speak(get("http://ALLOWED.Example./hello", "Allowed.EXAMPLE", "Connection: close"))
    assert b"hello allowed.example\n" in said


# N10, N11: ports, plain HTTP


@pytest.mark.parametrize("port", [22, 25, 853, 6379, 8080])
def test_ports_that_were_not_allowed(stage, port):
    asked = get(f"allowed.example:{port}", f"allowed.example:{port}", method="CONNECT")
    assert status(stage.speak(asked)) == 403
    assert stage.speak(*socks(b"allowed.example", port))[:4] == b"\5\0\5\2"
    stage.allow(f"allowed.example:{port}")
    with connected(stage, f"allowed.example:{port}") as sock:
        sock.sendall(b"anything at all")
        assert b"anything at all" in stages.heard(sock, quiet_s=1)


@pytest.mark.parametrize(
    "asked",
    [
        get("http://allowed.example/", "denied.example"),
        get("http://allowed.example/", "allowed.example:8080"),
        get("http://allowed.example/", "allowed.example", "Host: denied.example"),
        get("http://denied.example/", "allowed.example"),
        get("/", "allowed.example"),
        get("https://allowed.example/", "allowed.example"),
        get("http://allowed.example:443/", "allowed.example:443"),
        get("http://allowed.example/", "allowed.example", "X: y", " folded"),
        get("http://allowed.example/", "allowed.example", "Content-Length: 5",
            "Transfer-Encoding: chunked"),
        get("http://allowed.example/", "allowed.example\nHost: denied.example"),
        get("allowed.example:443", "denied.example", method="CONNECT"),
        b"GET http://allowed.example/ HTTP/1.1\n\n\r\n\r\n",
        b"\x16\3\1\0\5hello\r\n\r\n",
    ],
)  # fmt: skip
def test_requests_that_disagree_with_themselves(stage, asked):
    before = len(stage.log("web"))
    assert status(stage.speak(asked)) in (400, 403)
    assert len(stage.log("web")) == before


def test_each_request_of_a_connection_is_judged(stage):
    with stage.dial() as sock:
        for name, expected in (("allowed", 200), ("www.allowed", 200), ("denied", 403)):
            sock.sendall(get(f"http://{name}.example/hello", f"{name}.example"))
            said = b""
            while not said.endswith(b".example\n"):
                said += sock.recv(65536)
            assert status(said) == expected
        assert sock.recv(1) == b""


def test_smuggled_request_stays_a_body(stage):
    hidden = get("http://denied.example/", "denied.example")
    length = f"Content-Length: {len(hidden)}"
    said = stage.speak(
        get(
            "http://allowed.example/", "allowed.example", length, "Connection: close", method="POST"
        )
        + hidden
    )
    assert said.endswith(hidden)


def test_pipelined_requests(stage):
    one = get("http://allowed.example/hello", "allowed.example")
    last = get("http://www.allowed.example/hello", "www.allowed.example", "Connection: close")
    said = stage.speak(one + one + last)
    assert said.count(b"hello allowed.example") == 2
    assert said.endswith(b"hello www.allowed.example\n")


def test_proxy_headers_stay_here(stage):
    said = stage.speak(
        get("http://allowed.example/headers", "allowed.example", "Proxy-Authorization: Basic eA==",
            "Proxy-Connection: keep-alive", "X-Mine: 1", "Connection: close, x-hop", "X-Hop: 1")
    )  # fmt: skip
    arrived = json.loads(said.partition(b"\r\n\r\n")[2])
    assert arrived == {"host": "allowed.example", "x-mine": "1", "connection": "close"}


@pytest.mark.parametrize(
    ("path", "body"),
    [("chunked", "hello world"), ("endless", "until the end"), ("empty", ""), ("same", ""),
     ("early", "late\n")],
)  # fmt: skip
def test_bodies_of_every_framing(stage, path, body):
    """Twice on one connection, where the framing lets it live."""
    url = f"http://allowed.example/{path}"
    result = stage.curl(url, url, "http://allowed.example/hello")
    assert (result.returncode, result.stdout) == (0, body * 2 + "hello allowed.example\n")


def test_head_has_no_body(stage):
    result = stage.curl("--head", "http://allowed.example/x", "http://allowed.example/x")
    assert (result.returncode, result.stdout.count("Content-Length: 6")) == (0, 2)


def test_bodies_of_requests(stage):
    file = stage.place / "body"
    file.write_bytes(b"0123456789" * 100_000)
    for how in ([], ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect: 100-continue"]):
        result = stage.curl(
            *how, "--data-binary", f"@{file}", "http://allowed.example/echo", "-o", f"{file}.back"
        )
        assert result.returncode == 0
        assert (stage.place / "body.back").read_bytes() == file.read_bytes()


def test_early_answer_to_a_large_body(stage):
    file = stage.place / "large"
    file.write_bytes(bytes(8 << 20))
    result = stage.curl("-H", "Expect:", "--data-binary", f"@{file}",
                        "http://allowed.example/refuse-body", "-w", "%{http_code}")  # fmt: skip
    assert "413" in result.stdout or result.returncode


def test_contradicting_response_is_not_passed_on(stage):
    said = stage.speak(get("http://allowed.example/contradiction", "allowed.example"))
    assert status(said) == 502


def test_cut_response_does_not_look_whole(stage):
    result = stage.curl("http://allowed.example/cut/1000")
    assert result.returncode in (18, 56)


def test_web_socket(stage):
    upgrade = ["Connection: Upgrade", "Upgrade: websocket"]
    with stage.dial() as sock:
        sock.sendall(get("http://allowed.example/socket", "allowed.example", *upgrade))
        said = sock.recv(4096)
        assert status(said) == 101
        sock.sendall(b"to and fro")
        assert stages.heard(sock, quiet_s=1).endswith(b"to and fro")
    said = stage.speak(get("http://denied.example/socket", "denied.example", *upgrade))
    assert status(said) == 403


def test_other_upgrades_are_not_passed_on(stage):
    said = stage.speak(
        get("http://allowed.example/headers", "allowed.example", "Connection: Upgrade, close",
            "Upgrade: h2c", "HTTP2-Settings: x")
    )  # fmt: skip
    assert b"upgrade" not in said.partition(b"\r\n\r\n")[2].lower()


# N14, N16: what is spoken on 443 and on 80


def test_hello_must_name_the_place(stage):
    def served(data, *, step=1 << 20, wanted="allowed.example:443", capsule="tight"):
        with connected(stage, wanted, capsule) as sock:
            for at in range(0, len(data), step):
                sock.sendall(data[at : at + step])
            return is_served(stages.heard(sock, quiet_s=0.5))

    good = hello("allowed.example", stage.place)
    before = stage.log("tls").count("denied.example")
    assert served(good)
    assert served(good, step=1)
    assert not served(hello("denied.example", stage.place))
    assert not served(hello("denied.example", stage.place), step=1)
    assert not served(hello("www.allowed.example", stage.place))
    assert not served(hello(None, stage.place))
    assert stage.log("tls").count("denied.example") == before
    # Whoever was let through to a bare address may name whom he likes among the allowed.
    stage.allow("93.184.216.34", "allowed.example")
    assert served(hello(None, stage.place), wanted="93.184.216.34:443")
    assert served(good, wanted="93.184.216.34:443")
    assert not served(hello("denied.example", stage.place), wanted="93.184.216.34:443")


def test_wrong_name_is_reported_by_an_alert(stage):
    with connected(stage, "allowed.example:443") as sock:
        sock.sendall(hello("denied.example", stage.place))
        assert stages.heard(sock) == b"\x15\3\3\0\2\2\x31"
    assert not stage.attempt(
        why="the TLS server name is `denied.example`, not `allowed.example`"
    ).allowed


@pytest.mark.parametrize("data", [b"SSH-2.0-x\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100])
def test_only_tls_on_443(stage, data):
    with connected(stage, "allowed.example:443") as sock:
        sock.sendall(data)
        assert stages.heard(sock) == b""


@WAYS
def test_tunnel_to_80_speaks_http_with_the_right_host(stage, proxy):
    tunnel = ["--proxytunnel"] if proxy == stages.PROXY else []
    good = stage.curl(*tunnel, "http://allowed.example/hello", proxy=proxy)
    assert good.stdout == "hello allowed.example\n"
    bad = stage.curl(
        *tunnel, "-H", "Host: denied.example", "http://allowed.example/hello", proxy=proxy
    )
    assert "atoll: the request names `denied.example:80`" in bad.stdout
    with connected(stage, "allowed.example:80") as sock:
        sock.sendall(b"SSH-2.0-x\r\n\r\n")
        assert status(stages.heard(sock)) == 400


# N25, N31, N32, N33, SOCKS


def test_name_with_ipv6_only(stage):
    stage.allow("six.example")
    assert stage.curl("https://six.example/hello").stdout == "hello six.example\n"
    assert stage.attempt(place="six.example").address == "2606:2800:220:1::34"


def test_proxy_is_not_there_outside(stage):
    """Neither on the host nor in the other capsule's reach."""
    for where in ("exits", "internet"):
        result = stage.run("curl", "-sS", "--max-time", "5", stages.PROXY, capsule=where)
        assert result.returncode == 7
    assert stage.run("curl", "-sS", stages.PROXY).stdout.startswith("atoll: this is a proxy")
    stage.allow(mode="none")
    assert stage.curl("http://allowed.example/hello").stdout == (
        "atoll: this capsule has no network\n"
    )
    assert stage.curl("http://allowed.example/hello", capsule="wide").returncode == 0


def test_redirect_is_judged_like_any_request(stage):
    good = stage.curl("--location", "http://allowed.example/redirect/www.allowed.example")
    assert good.stdout == "hello www.allowed.example\n"
    bad = stage.curl("--location", "http://allowed.example/redirect/denied.example")
    assert bad.stdout.startswith("atoll: `denied.example` is not allowed")


def test_old_and_other_socks(stage):
    assert stage.speak(b"\4\1\0\x50\x5d\xb8\xd8\x22\0") == b""
    assert stage.speak(b"\4\1\0\x50\0\0\0\1\0allowed.example\0") == b""
    assert stage.speak(b"\5\1\2") == b"\5\xff"
    for command in (2, 3):
        asked = bytes([5, command, 0, 3, 15]) + b"allowed.example\0\x50"
        assert stage.speak(b"\5\1\0", asked)[:4] == b"\5\0\5\7"
    result = stage.curl("http://allowed.example/hello", proxy=f"socks4a://127.0.0.1:{PROXY_PORT}")
    assert result.returncode


def test_unreachable_is_reported(stage):
    stage.allow("closed.example", "nowhere.example")
    for name, why in (("closed", "connection refused"), ("nowhere", "the name does not resolve")):
        asked = get(f"{name}.example:443", f"{name}.example", method="CONNECT")
        said = stage.speak(asked)
        assert status(said) == 502
        assert why.encode() in said
        attempt = next(a for a in stage.attempts() if a.place == f"{name}.example")
        assert attempt.allowed
        assert attempt.failed
        assert why in attempt.why


# The journal


def test_journal_tells_all_and_nothing_secret(stage):
    stage.curl("-H", "Authorization: Bearer k3y", "https://allowed.example/path?token=s3cret")
    stage.curl("-H", "Authorization: Bearer k3y", "http://allowed.example/path?token=s3cret")
    stage.curl("-u", "user:pa55", "http://denied.example/path?token=s3cret")
    text = (stage.place / "tight" / "network.jsonl").read_text()
    assert not [word for word in ("k3y", "s3cret", "path", "pa55", "Bearer") if word in text]
    assert os.stat(stage.place / "tight" / "network.jsonl").st_mode & 0o777 == 0o600
    tunnel = stage.attempt(via="connect", place="allowed.example", port=443, allowed=True)
    plain = stage.attempt(via="http", place="allowed.example", allowed=True)
    assert (tunnel.allowed, tunnel.why, tunnel.address) == (
        True,
        "allowed.example",
        "93.184.216.34",
    )
    assert tunnel.sent > 300
    assert tunnel.received > 500
    assert tunnel.took_s is not None
    assert (plain.via, plain.port, plain.received) == ("http", 80, len("hello allowed.example\n"))
    assert stage.attempt(via="http", place="denied.example", allowed=False)


# Ports of the host


def test_port_of_the_host_by_grant(stage):
    assert stage.speak(capsule="tight", port=5432) == b""
    assert not stage.attempt(via="host").allowed
    stage.allow("host:5432")
    assert stage.speak(port=5432) == b"the host's own\n"
    assert stage.attempt(via="host", place="host", port=5432, received=15).allowed
    assert stage.speak(port=5432, capsule="wide") == b""
    assert status(stage.speak(get("127.0.0.1:5432", "127.0.0.1:5432", method="CONNECT"))) == 403
    with pytest.raises(ConnectionRefusedError):
        stage.dial(port=8000)


@pytest.mark.parametrize("body", [b"zz\r\n", b"5\r\nhello!\r\n0\r\n\r\n", b"5;" + b"x" * 9000])
def test_malformed_chunks_of_a_request_are_not_blamed_on_the_server(stage, body):
    head = get("http://allowed.example/", "allowed.example", "Transfer-Encoding: chunked",
               method="POST")  # fmt: skip
    said = stage.speak(head + body)
    assert status(said) == 400
    assert b"the body of the request: " in said
    assert b"closed the connection" not in said


def test_address_for_a_special_purpose_is_explained(stage):
    """A VPN's own name server may give an allowed name such an address."""
    stage.curl("http://fake.allowed.example/")
    found = stage.attempt(place="fake.allowed.example", allowed=False)
    assert found.why.startswith("the address 198.18.7.7 is for benchmarks")
    assert found.ask == "198.18.7.7:80"
