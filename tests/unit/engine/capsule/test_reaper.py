"""The next command puts right what a dead one has left, and does not wait for the hopeless."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from atoll.engine.capsule import reaper, removal
from atoll.engine.projects import open_project
from atoll.model.errors import StateError


@pytest.fixture
def hopeless(repo, atoll_home, monkeypatch):
    """A capsule that cannot be removed; returns its session, its record and what was tried."""
    said, tried = [], []
    project = open_project(repo, background=False, warn=said.append)
    capsule = project.new("x")
    removal.announce(project.session, capsule.record)

    def fail(session, found):
        tried.append(found.name)
        raise StateError("its disk is away")

    monkeypatch.setattr(reaper, "_finish", fail)
    yield project.session, capsule.record, tried, said
    monkeypatch.undo()
    reaper.settle(project.session, patient=True)
    project.session.store.close()


def root_of(session):
    return session.store.projects()[0].root


def test_other_projects_do_not_wait_for_work_to_be_stored(hopeless, tmp_path):
    session, _, tried, said = hopeless
    reaper.settle(session, at=str(tmp_path))
    assert (tried, said) == ([], [])
    reaper.settle(session, at=root_of(session))
    assert tried == ["x"]


def test_what_fails_at_once_is_tried_every_time(hopeless):
    session, _, tried, said = hopeless
    for _ in range(3):
        reaper.settle(session, at=root_of(session))
    assert tried == ["x"] * 3
    assert said == ["`x` is still removing: its disk is away"] * 3


def test_what_fails_slowly_is_left_for_later(hopeless, monkeypatch):
    session, record, tried, said = hopeless
    monkeypatch.setattr(reaper, "_LONG_S", -1.0)
    for _ in range(3):
        reaper.settle(session, at=root_of(session))
    assert tried == ["x"]
    assert said[1:] == ["`x` is still removing\nhint: atoll gc"] * 2
    # Who is patient, `gc`, tries it all the same, and so does anybody after a while.
    reaper.settle(session, patient=True)
    assert tried == ["x"] * 2
    long_ago = time.time() - reaper._AGAIN_S - 1
    os.utime(Path(record.directory, reaper._FAILED), (long_ago, long_ago))
    reaper.settle(session, at=root_of(session))
    assert tried == ["x"] * 3
