"""Scopes as far as no manager is needed; see `tests/integration/test_scopes.py` for the rest."""

from __future__ import annotations

import os
import socket

import pytest

from atoll.host import programs, scopes
from atoll.host.scopes import NoAnswerError

NAME = "0a1b2c3d-12"


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A runtime directory with a manager's socket, which no process serves, of an ordinary user."""
    (tmp_path / "systemd").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "systemd" / "private"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    uid = os.geteuid() or 1
    os.chown(tmp_path / "systemd" / "private", uid, -1)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(programs, "is_trusted", lambda *_: True)
    return tmp_path


def test_manager_of_this_user(runtime):
    assert scopes.find_manager() == str(runtime / "systemd" / "private")


def test_root_needs_no_manager(runtime, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert scopes.find_manager() is None


def test_no_manager(runtime):
    (runtime / "systemd" / "private").unlink()
    assert scopes.find_manager() is None


def test_file_is_no_manager(runtime):
    (runtime / "systemd" / "private").unlink()
    (runtime / "systemd" / "private").touch()
    assert scopes.find_manager() is None


def test_manager_of_another_user(runtime, monkeypatch):
    uid = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert scopes.find_manager() is None


def test_manager_that_others_could_replace(runtime, monkeypatch):
    monkeypatch.setattr(programs, "is_trusted", lambda *_: False)
    assert scopes.find_manager() is None


@pytest.mark.parametrize("place", [None, "", "relative"])
def test_usual_place_without_a_variable(runtime, monkeypatch, place):
    if place is None:
        monkeypatch.delenv("XDG_RUNTIME_DIR")
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", place)
    asked: list[str] = []
    monkeypatch.setattr(os, "lstat", asked.append)
    with pytest.raises(AttributeError):
        scopes.find_manager()
    assert asked == [f"/run/user/{os.geteuid()}/systemd/private"]


def test_nothing_listens(runtime):
    with pytest.raises(NoAnswerError):
        scopes.start(str(scopes.find_manager()), scopes.unit_name(NAME), os.getpid(), "x")


def test_names_are_found_again_and_never_the_same(tmp_path):
    units = {scopes.unit_name(NAME) for _ in range(20)}
    assert len(units) == 20
    other = scopes.unit_name("0a1b2c3d-1")
    for unit in (*units, other, "app-terminal.scope", f"atoll-{NAME}.scope", "atoll-x-1-2.scope"):
        (tmp_path / unit).mkdir()
    found = scopes.find_scopes(str(tmp_path), lambda name: name == NAME)
    assert found == {str(tmp_path / unit): NAME for unit in units}
    assert list(scopes.find_scopes(str(tmp_path), lambda name: name != NAME)) == [
        str(tmp_path / other)
    ]


def test_manager_that_is_gone_has_no_scopes(tmp_path):
    assert scopes.find_scopes(str(tmp_path / "gone"), lambda _: True) == {}
