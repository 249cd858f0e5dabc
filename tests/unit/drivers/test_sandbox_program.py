"""Which bwrap is believed."""

from __future__ import annotations

import os

import pytest

from atoll.drivers.isolation import sandbox


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A directory with a program of that name; the PATH is what the test says."""
    place = tmp_path / "project" / "bin"
    place.mkdir(parents=True)
    (place / "bwrap").write_text("#!/bin/sh\n")
    (place / "bwrap").chmod(0o755)
    monkeypatch.chdir(place)
    return place


def test_one_that_the_project_brings_is_not(planted, monkeypatch):
    monkeypatch.setenv("PATH", f"{planted}:.:")
    assert sandbox._find_program() == str(planted / "bwrap")
    assert sandbox._find_program(str(planted.parent)) is None


def test_one_of_the_machine_is(planted, tmp_path, monkeypatch):
    trusted = tmp_path / "usr"
    trusted.mkdir()
    os.symlink(planted / "bwrap", trusted / "bwrap")
    monkeypatch.setenv("PATH", f"{planted}:{trusted}")
    assert sandbox._find_program(str(planted.parent)) == str(trusted / "bwrap")
