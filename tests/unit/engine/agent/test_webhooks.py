"""Notifications to a webhook, by a server that answers whatever it likes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atoll.engine.agent import notifications
from atoll.model.spec import NotifySettings

WAIT_S = 20.0


class Server:
    """Answers each connection with the same bytes and remembers the first lines of requests."""

    def __init__(self, answer: bytes) -> None:
        self.requests: list[bytes] = []
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/hook"

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                connection.settimeout(WAIT_S)
                said = connection.recv(1 << 16)
                if said == b"end":
                    return
                # A redirect that is followed is a GET, without a body.
                while not said.endswith((b"}", b"\r\n\r\n")) or (
                    said.startswith(b"POST") and not said.endswith(b"}")
                ):
                    more = connection.recv(1 << 16)
                    if not more:
                        break
                    said += more
                self.requests.append(said.split(b"\r\n")[0])
                connection.sendall(self._answer)

    def close(self) -> None:
        with socket.create_connection(self._socket.getsockname(), timeout=WAIT_S) as last:
            last.sendall(b"end")
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        self._socket.close()


@pytest.fixture
def serve() -> Iterator[Callable[[bytes], Server]]:
    servers: list[Server] = []

    def start(answer: bytes) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    try:
        yield start
    finally:
        for server in servers:
            server.close()


def failures(home: Path) -> str:
    log = home / notifications.LOG
    return log.read_text() if log.exists() else ""


def deliver(home: Path, url: str, mark: Path) -> None:
    """Delivers by a webhook; the command that is tried first shows that nothing was raised."""
    settings = NotifySettings(webhook=url, command=f"cat > '{mark}'")
    notifications.deliver(home, '{"event": "agent.waiting"}', settings)


def test_event_is_posted(serve, tmp_path):
    server = serve(b"HTTP/1.1 204 No Content\r\n\r\n")
    deliver(tmp_path, server.url, tmp_path / "mark")
    assert server.requests == [b"POST /hook HTTP/1.1"]
    assert failures(tmp_path) == ""


@pytest.mark.parametrize(
    "answer",
    [b"garbage\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n"],
)
def test_answer_that_is_no_http_is_a_line_in_the_log(serve, tmp_path, answer):
    server = serve(answer)
    deliver(tmp_path, server.url, tmp_path / "mark")
    assert failures(tmp_path).count("\n") == 1
    assert "webhook: " in failures(tmp_path)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_not_followed(serve, tmp_path, status):
    elsewhere = serve(b"HTTP/1.1 204 No Content\r\n\r\n")
    answer = f"HTTP/1.1 {status} Moved\r\nLocation: {elsewhere.url}\r\nContent-Length: 0\r\n\r\n"
    server = serve(answer.encode())
    deliver(tmp_path, server.url, tmp_path / "mark")
    assert elsewhere.requests == []
    assert f"{status}" in failures(tmp_path)
