"""Browser drivers: what they start, what they leave alone, and whom they do not believe."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

import pytest

from atoll.drivers import registry
from atoll.drivers.browser import devtools
from atoll.drivers.contracts import BrowserRequest
from atoll.model import browsertools

REQUEST = BrowserRequest(program="/usr/bin/browser", profile="/p", url="http://a.localhost/")


@pytest.fixture(params=registry.BROWSERS)
def driver(request):
    return registry.browser_driver(request.param)


# Every driver.


def test_window_has_the_profile_and_never_less_sandbox(driver):
    for is_open in (False, True):
        words = driver.plan_window(REQUEST._replace(is_open=is_open))
        assert words[0] == REQUEST.program
        assert words[-1] == REQUEST.url
        assert any("/p" in word for word in words)
        assert not any("no-sandbox" in word or "remote-debugging" in word for word in words)


def test_program_is_found_by_absolute_directories_outside_of_the_project(driver, tmp_path):
    names = {"chromium": "chromium-browser", "firefox": "firefox"}
    project, system = tmp_path / "project", tmp_path / "system"
    for place in (project / "bin", system):
        place.mkdir(parents=True)
        (place / names[driver.name]).write_text("#!/bin/sh\n")
        (place / names[driver.name]).chmod(0o755)
    found = str(system / names[driver.name])
    planted = str(project / "bin" / names[driver.name])
    path = f"{project}/bin:relative::{system}"
    assert driver.find_program(path, avoid=str(project)) == found
    assert driver.find_program(f"{project}/bin", avoid=str(project)) is None
    assert driver.find_program(path, avoid=str(project), chosen=planted) is None
    assert driver.find_program("", avoid=str(project), chosen=found) == found
    (tmp_path / "link").symlink_to(project / "bin")
    assert driver.find_program(f"{tmp_path}/link", avoid=str(project)) is None


def test_what_pages_store_lasts(driver):
    lasting = {
        "chromium": [
            "Default/Cookies",
            "Default/Local Storage/leveldb/000003.log",
            "Default/IndexedDB/http_localhost_3000.indexeddb.leveldb",
            "Default/Service Worker/CacheStorage/1/Cache",
            "Default/Extensions",
            "Local State",
        ],
        "firefox": ["cookies.sqlite", "storage/default", "extensions", "storage/default/x/lock"],
    }
    passing = {
        "chromium": ["SingletonLock", "SingletonSocket", "Default/Cache", "ShaderCache"],
        "firefox": ["lock", ".parentlock", "cache2"],
    }
    assert [path for path in lasting[driver.name] if not driver.is_lasting(path)] == []
    assert [path for path in passing[driver.name] if driver.is_lasting(path)] == []


def test_headless_listens_only_on_the_given_port():
    words = registry.driven_browser().plan_headless(REQUEST, port=62_004, cwd="/w")
    assert "--remote-debugging-port=62004" in words
    assert not any(word.startswith("--remote-debugging-address") for word in words)
    assert not any(word.startswith("--remote-allow-origins") for word in words)


# Whoever listens on the port need not be a browser.


@contextlib.contextmanager
def listening(*answers, heard=None):
    """Somebody who gives these answers, one per connection, and then says no more; all that was
    sent on each is added to `heard`.
    """

    def serve():
        for answer in answers:
            with contextlib.suppress(OSError):
                sock, _ = listener.accept()
                with sock:
                    said = sock.recv(1 << 16)
                    sock.sendall(answer)
                    sock.shutdown(socket.SHUT_WR)
                    while more := sock.recv(1 << 16):
                        said += more
                if heard is not None:
                    heard.append(said)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        try:
            yield lambda: socket.create_connection(listener.getsockname(), timeout=5)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            server.join()


def told(body, status="200 OK", length=None):
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n\r\n".encode() + body


GOOD = b'{"webSocketDebuggerUrl": "ws://127.0.0.1/devtools/browser/ab-12"}'


def test_browser_is_known_by_its_answer():
    with listening(told(GOOD)) as dial:
        assert devtools.is_answering(dial)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0" * 100,
        b"HTTP/1.1 200 OK\r\n\r\n",
        told(GOOD, status="404 Not Found"),
        told(b"not json"),
        told(b"[]"),
        told(b"{}"),
        told(b"[" * 100_000),
        told(GOOD, length=9_999_999),
        told(b'{"webSocketDebuggerUrl": "ws://h/devtools/browser/a\\r\\nX: y"}'),
        told(b'{"webSocketDebuggerUrl": "ws://h/../../etc"}'),
        told(b'{"webSocketDebuggerUrl": {"a": 1}}'),
    ],
)
def test_anything_else_is_no_browser(answer):
    with listening(answer) as dial:
        assert not devtools.is_answering(dial)


def test_endless_answer_ends(monkeypatch):
    monkeypatch.setattr(devtools, "_MAX_BYTES", 1000)
    with listening(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 10_000) as dial:
        assert not devtools.is_answering(dial)


def test_silence_has_an_end(monkeypatch):
    monkeypatch.setattr(devtools, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert not devtools.is_answering(
            lambda: socket.create_connection(listener.getsockname(), timeout=5)
        )


def test_close_needs_an_upgrade():
    with (
        listening(told(GOOD), told(b"no")) as dial,
        pytest.raises(devtools.NotABrowserError),
    ):
        devtools.close(dial)


@pytest.mark.parametrize("rest", [b"", b"\x81\x02{}"])
def test_close_is_heard_whatever_comes_after(rest):
    upgrade = b"HTTP/1.1 101 WebSocket Protocol Handshake\r\n\r\n" + rest
    heard: list[bytes] = []
    with listening(told(GOOD), upgrade, heard=heard) as dial:
        devtools.close(dial)
    head, _, frame = heard[1].partition(b"\r\n\r\n")
    assert head.startswith(b"GET /devtools/browser/ab-12 ")
    kind, size, mask, payload = frame[0], frame[1], frame[2:6], frame[6:]
    assert (kind, size) == (0x81, 0x80 | len(payload)), "one masked message of text"
    text = bytes(byte ^ mask[number % 4] for number, byte in enumerate(payload))
    assert json.loads(text)["method"] == "Browser.close"


# Tools.


@pytest.mark.parametrize("tool", browsertools.TOOLS)
def test_every_tool_gets_the_endpoint(tool):
    assert "http://127.0.0.1:1" in str(browsertools.settings_of(tool, "http://127.0.0.1:1"))


def test_other_tools_are_unknown():
    with pytest.raises(KeyError):
        browsertools.settings_of("netscape", "http://127.0.0.1:1")
