"""N34: where the owner's own way out leads through a proxy, so does a capsule's."""

from __future__ import annotations

import pytest

import stages

SECRET = "top-secret"
OWNER = f"http://owner:{SECRET}@proxy.example:3128"


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    environment = {"HTTPS_PROXY": OWNER, "NO_PROXY": "localhost, .direct.example,six.example"}
    with stages.played(tmp_path_factory.mktemp("stage"), env=environment) as stage:
        stage.allow("allowed.example", "six.example", "allowed.example:22", "10.99.0.1")
        stage.allow(mode="open", capsule="wide")
        yield stage


def test_allowed_name_goes_through_the_owners_proxy(stage):
    assert stage.curl("https://allowed.example/hello").stdout == "hello allowed.example\n"
    assert stage.curl("https://allowed.example/hello", proxy=None).returncode == 0
    assert stage.log("proxy") == ["CONNECT allowed.example:443 True"] * 2
    assert "allowed.example" not in stage.log("dns")


def test_plain_requests_do_too(stage):
    assert stage.curl("http://allowed.example/a?b").stdout == "by the owner's proxy\n"
    assert stage.log("proxy")[-1] == "GET http://allowed.example:80/a?b True"


def test_other_names_never_get_there(stage):
    before = stage.log("proxy")
    for url in ("http://denied.example/", "https://denied.example/", "http://[::1]/",
                "http://169.254.169.254/", "https://allowed.example:6379/"):  # fmt: skip
        assert "hello" not in stage.curl(url).stdout
        assert "hello" not in stage.curl(url, proxy=None).stdout
    for url in ("http://localhost/", "http://metadata.google.internal/", "http://127.0.0.1/",
                "http://169.254.169.254/"):  # fmt: skip
        assert stage.curl(url, capsule="wide").stdout.startswith("atoll: ")
    assert stage.log("proxy") == before


def test_exceptions_of_the_owner_hold(stage):
    before = stage.log("proxy")
    assert stage.curl("https://six.example/hello").stdout == "hello six.example\n"
    assert stage.log("proxy") == before


def test_server_that_speaks_first(stage):
    with stage.dial() as sock:
        sock.sendall(b"CONNECT allowed.example:22 HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
        assert stages.heard(sock, quiet_s=1).endswith(b"SSH-2.0-test\r\n")


def test_credentials_are_nowhere_inside(stage):
    said = stage.curl("-v", "https://allowed.example/hello")
    said_plainly = stage.curl("-v", "http://allowed.example/hello")
    journal = (stage.place / "tight" / "network.jsonl").read_text()
    everything = said.stdout + said.stderr + said_plainly.stdout + said_plainly.stderr + journal
    assert SECRET not in everything
    assert "b3duZXI6" not in everything


def test_refusal_of_the_owners_proxy_is_reported_without_its_name(tmp_path):
    environment = {"https_proxy": "http://owner:wrong@proxy.example:3128"}
    with stages.played(tmp_path / "stage", env=environment) as stage:
        stage.allow("allowed.example")
        for url in ("https://allowed.example/", "http://allowed.example/"):
            result = stage.curl("-v", url)
            assert "502" in result.stderr
            assert "proxy.example" not in result.stdout + result.stderr
        assert stage.attempt(place="allowed.example").allowed


@pytest.mark.parametrize(
    "url", ["socks5://proxy.example:1080", "https://proxy.example", "http://["]
)
def test_proxy_that_cannot_be_used_is_not_gone_around(tmp_path, url):
    with stages.played(tmp_path / "stage", env={"ALL_PROXY": url}) as stage:
        stage.allow("allowed.example")
        result = stage.curl("http://allowed.example/hello")
        assert "the owner's upstream proxy has an unsupported scheme" in result.stdout
        assert stage.log("web") == []
