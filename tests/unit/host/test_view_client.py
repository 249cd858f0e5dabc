"""Files for a view: handed to its holder, also where that is of an earlier version."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from atoll.host import view_client
from atoll.host.view_client import InsideFile
from atoll.keeper import requests, wire
from atoll.model.errors import DriverError, StateError

FILE = InsideFile("secrets/A", b"value-of-a")


class Holder:
    """Answers requests in a thread as a holder would; `replies` by the key of the request."""

    def __init__(self, directory, replies):
        self.directory, self.replies, self.seen = str(directory), replies, []
        self._listener = wire.listen(self.directory, requests.SOCKET, socket.SOCK_SEQPACKET)
        self._listener.settimeout(60)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            client, _ = self._listener.accept()
            with client:
                client.settimeout(60)
                request, fds = requests.receive(client)
                if "stop" in request:
                    return
                self.seen.append((request, [os.pread(fd, 100, 0) for fd in fds]))
                for fd in fds:
                    os.close(fd)
                reply = self.replies.get(next(iter(request)))
                # Without a reply the connection is closed, as for an unknown request.
                if reply is not None:
                    requests.send(client, reply)

    def close(self):
        with requests.connect(self.directory) as sock:
            requests.send(sock, {"stop": True})
        self._thread.join()
        self._listener.close()


@pytest.fixture
def holder(tmp_path):
    started = []

    def start(**replies):
        started.append(Holder(tmp_path, replies))
        return started[-1]

    yield start
    for one in started:
        one.close()


def put(holder):
    return view_client.put_files(holder.directory, [FILE], subject="x")


def test_without_a_holder(tmp_path):
    assert view_client.put_files(str(tmp_path), [FILE], subject="x") is False
    assert view_client.put_files(str(tmp_path), [], subject="x") is True
    assert view_client.find_files(str(tmp_path)) is None
    assert view_client.drop_file(str(tmp_path), "secrets/A") is False


def test_files_are_handed_over(holder):
    it = holder(put={}, drop={"dropped": True}, list={"files": {"secrets/A": None}})
    assert put(it)
    request, [content] = it.seen[0]
    assert request == {"put": "secrets/A", "public": False, "until": None}
    assert content == b"value-of-a"
    assert view_client.find_files(it.directory) == {"secrets/A"}
    assert view_client.drop_file(it.directory, "secrets/A")


def test_the_refusal_of_a_holder_is_reported(holder):
    it = holder(put={"error": "No space left on device"})
    with pytest.raises(DriverError, match=r"`x`: `secrets/A` cannot be put .* No space left"):
        put(it)


def test_a_holder_of_an_earlier_version(holder):
    """An idle one is closed, so that a new view can be opened; one with runs is left alone."""
    idle = holder(ping={"pid": 1, "runs": 0}, end={"runs": 0})
    assert put(idle) is False
    assert [next(iter(request)) for request, _ in idle.seen] == ["put", "ping", "end"]


def test_a_holder_of_an_earlier_version_with_runs(holder):
    it = holder(ping={"pid": 1, "runs": 1}, end={"runs": 1})
    with pytest.raises(StateError) as caught:
        put(it)
    assert caught.value.hint == "atoll stop x, then try again"


def test_a_file_shows_no_content():
    assert "value" not in repr(FILE)
