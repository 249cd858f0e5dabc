"""The private files of a view: whole, named strictly, and gone at their deadline."""

from __future__ import annotations

import os
import stat
import time

import pytest

from atoll.keeper.private_files import LIMIT_BYTES, PUBLIC_MODE, SECRET_MODE, PrivateFiles
from atoll.keeper.wire import WireError


@pytest.fixture
def place(tmp_path):
    return tmp_path / "files"


@pytest.fixture
def files(place):
    place.mkdir()
    top = os.open(place, os.O_PATH | os.O_DIRECTORY)
    yield PrivateFiles(top, None)
    os.close(top)


def memfd(content):
    fd = os.memfd_create("test")
    os.write(fd, content)
    return fd


def put(files, name, content, **request):
    fd = memfd(content)
    try:
        return files.serve({"put": name, "public": False, **request}, [fd])
    finally:
        os.close(fd)


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_has_its_content_and_mode(files, place):
    assert put(files, "secrets/TOKEN", b"value") == {}
    assert put(files, "ca.pem", b"public", public=True) == {}
    assert (place / "secrets/TOKEN").read_bytes() == b"value"
    assert mode_of(place / "secrets/TOKEN") == SECRET_MODE
    assert mode_of(place / "ca.pem") == PUBLIC_MODE
    assert mode_of(place / "secrets") == 0o755
    assert files.serve({"list": True}, []) == {"files": {"secrets/TOKEN": None, "ca.pem": None}}


def test_a_file_is_replaced_as_a_whole(files, place):
    put(files, "a", b"first")
    with (place / "a").open("rb") as opened:
        before = (place / "a").stat().st_ino
        put(files, "a", b"first")
        assert (place / "a").stat().st_ino == before
        put(files, "a", b"second")
        assert opened.read() == b"first"
    assert (place / "a").read_bytes() == b"second"
    assert os.listdir(place) == ["a"]


def test_a_file_is_dropped(files, place):
    put(files, "secrets/A", b"value")
    assert files.serve({"drop": "secrets/A"}, []) == {"dropped": True}
    assert os.listdir(place / "secrets") == []
    assert files.serve({"drop": "secrets/A"}, []) == {"dropped": False}


def test_a_file_is_removed_at_its_deadline(files, place):
    now = time.time()
    put(files, "past", b"value", until=now - 1)
    put(files, "later", b"value", until=now + 3600)
    assert files.wait_s() == 0
    files.expire()
    assert os.listdir(place) == ["later"]
    assert 0 < files.wait_s() <= 3600
    # Granted again, without an end.
    put(files, "later", b"value", until=None)
    assert files.wait_s() is None


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../x", "a/../b", "/etc/x", "a/b/c", ".hidden", "-x", "a//b", "a/"),
        *("a\n", "é", "x" * 201, "a b", "a/.new"),
    ],
)
def test_other_names_are_refused(files, place, name):
    with pytest.raises(WireError):
        put(files, name, b"value")
    with pytest.raises(WireError):
        files.serve({"drop": name}, [])
    assert os.listdir(place) == []


@pytest.mark.parametrize("until", [True, "soon", 0, -1, float("nan"), [1]])
def test_other_deadlines_are_refused(files, until):
    with pytest.raises(WireError):
        put(files, "a", b"value", until=until)


def test_sizes_and_kinds_are_bounded(files, place):
    assert put(files, "a", b"x" * LIMIT_BYTES) == {}
    with pytest.raises(WireError):
        put(files, "a", b"x" * (LIMIT_BYTES + 1))
    reader, writer = os.pipe()
    with pytest.raises(WireError):
        files.serve({"put": "b", "public": False}, [reader])
    os.close(reader)
    os.close(writer)
    for request, fds in (({"put": "b", "public": False}, []), ({"put": "b"}, [0]), ({"x": 1}, [])):
        with pytest.raises(WireError):
            files.serve(request, fds)
    assert os.listdir(place) == ["a"]


def test_what_the_host_refuses_is_an_answer(files, place):
    put(files, "secrets", b"a file where a directory must be")
    assert put(files, "secrets/A", b"value") == {"error": "Not a directory"}
    for number in range(500):
        put(files, f"n{number}", b"x")
    assert put(files, "one-more", b"x") == {"error": "there are too many files"}
    assert ".new" not in os.listdir(place)
