"""The ways in which a notification is delivered, and where their failures are written."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from atoll.engine.agent import notifications
from atoll.host import programs
from atoll.model.spec import NotifySettings

EVENT = json.dumps({
    "event": "agent.waiting", "capsule": "x", "state": "waiting", "reason": "for you", "task": "t",
})  # fmt: skip


class _Hook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, self.headers["Content-Type"], body))  # type: ignore[attr-defined]
        self.send_response(500 if self.path == "/broken" else 204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), _Hook)
    server.got = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def deliver(home: Path, **settings: object) -> str:
    """What the log of failures says afterwards, without its dates."""
    notifications.deliver(home, EVENT, NotifySettings.model_validate(settings))
    log = home / notifications.LOG
    lines = log.read_text().splitlines() if log.exists() else []
    return "\n".join(line.partition(" ")[2] for line in lines)


def test_webhook_gets_the_event(tmp_path: Path, hook: HTTPServer) -> None:
    assert deliver(tmp_path, webhook=f"http://127.0.0.1:{hook.server_port}/here") == ""
    assert hook.got == [("/here", "application/json", EVENT.encode())]  # type: ignore[attr-defined]


def test_webhook_that_answers_with_an_error(tmp_path: Path, hook: HTTPServer) -> None:
    said = deliver(tmp_path, webhook=f"http://127.0.0.1:{hook.server_port}/broken")
    assert said == "webhook: HTTP Error 500: Internal Server Error"


@pytest.fixture
def desktop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the only programs of this machine are."""
    place = tmp_path / "programs"
    place.mkdir()
    monkeypatch.setattr(programs, "SYSTEM_DIRECTORIES", (str(place),))
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.setenv("DISPLAY", ":7")
    return place


def put(place: Path, text: str) -> None:
    (place / "notify-send").write_text(f"#!/bin/sh\n{text}\n")
    (place / "notify-send").chmod(0o755)


def test_desktop_shows_the_event(tmp_path: Path, desktop: Path) -> None:
    shown = tmp_path / "shown"
    put(desktop, f"printf '%s\\n' \"$@\" $DISPLAY > '{shown}'")
    assert deliver(tmp_path, desktop=True) == ""
    assert shown.read_text().splitlines() == [
        "--app-name=atoll", "--", "atoll: x is waiting", "for you", ":7",
    ]  # fmt: skip


def test_failures_of_the_desktop_are_written_down(tmp_path: Path, desktop: Path) -> None:
    missing = "desktop: `notify-send` is not installed"
    assert deliver(tmp_path, desktop=True) == missing
    put(desktop, "echo no display >&2; exit 1")
    failed = "desktop: `notify-send` exited with 1: no display"
    assert deliver(tmp_path, desktop=True) == f"{missing}\n{failed}"


def test_desktop_that_hangs(tmp_path: Path, desktop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "_DESKTOP_S", 0.05)
    put(desktop, "while :; do read -r x < /dev/zero; done")
    assert deliver(tmp_path, desktop=True) == "desktop: `notify-send` took more than 0 s"


def test_one_way_that_fails_does_not_keep_the_others_back(tmp_path: Path, hook: HTTPServer) -> None:
    url = f"http://127.0.0.1:{hook.server_port}/"
    assert deliver(tmp_path, command="exit 3", webhook=url) == "command: `exit 3` exited with 3"
    assert len(hook.got) == 1  # type: ignore[attr-defined]
