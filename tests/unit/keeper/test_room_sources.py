"""What is shown in a room is opened through no link."""

from __future__ import annotations

import errno
import os

import pytest

from atoll.keeper.calls import open_source
from atoll.keeper.handles import Opened


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "real" / "sub").mkdir(parents=True)
    os.symlink("real", tmp_path / "link")
    os.symlink("/", tmp_path / "real" / "everything")
    return tmp_path


def test_a_place_without_links_is_opened(tree):
    with Opened(open_source(str(tree / "real" / "sub"))) as handle:
        assert os.path.samestat(os.fstat(handle), os.stat(tree / "real/sub"))


@pytest.mark.parametrize(
    "name", ["link", "link/sub", "real/everything", "real/everything/etc", "real/../link"]
)
def test_a_link_is_an_error(tree, name):
    # As a control: the name leads to a directory.
    assert os.path.isdir(tree / name)
    message = os.strerror(errno.ELOOP)
    with pytest.raises(OSError, match=message):
        open_source(str(tree / name))


@pytest.mark.parametrize("path", ["real", "", "./real", "../x"])
def test_a_relative_name_is_an_error(tree, monkeypatch, path):
    monkeypatch.chdir(tree)
    with pytest.raises(OSError, match="not an absolute path"):
        open_source(path)


def test_what_a_process_has_open_is_no_place(tree):
    handle = os.open(tree, os.O_RDONLY)
    try:
        assert os.path.isdir(f"/proc/self/fd/{handle}")
        place = f"/proc/{os.getpid()}/fd/{handle}"
        with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
            open_source(place)
    finally:
        os.close(handle)
