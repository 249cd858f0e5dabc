"""Which bwrap is started."""

from __future__ import annotations

import os

import pytest

from atoll.host import programs
from atoll.host.programs import find_program


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A directory with a program of that name, on a machine that has none by itself."""
    monkeypatch.setattr(programs, "SYSTEM_DIRECTORIES", ())
    place = tmp_path / "project" / "bin"
    place.mkdir(parents=True)
    (place / "bwrap").write_text("#!/bin/sh\n")
    (place / "bwrap").chmod(0o755)
    monkeypatch.chdir(place)
    return place


def test_one_that_the_project_brings_is_not(planted, monkeypatch):
    monkeypatch.setenv("PATH", f"{planted}:.:")
    assert find_program("bwrap") == str(planted / "bwrap")
    assert find_program("bwrap", avoid=(str(planted.parent),)) is None


def test_nor_is_one_that_only_leads_there(planted, tmp_path, monkeypatch):
    elsewhere = tmp_path / "usr"
    elsewhere.mkdir()
    os.symlink(planted / "bwrap", elsewhere / "bwrap")
    monkeypatch.setenv("PATH", str(elsewhere))
    assert find_program("bwrap") == str(elsewhere / "bwrap")
    assert find_program("bwrap", avoid=(str(planted.parent),)) is None
