"""The next command puts right what a dead one has left, and does not wait for the hopeless."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from atoll.engine.capsule import parts, reaper, removal
from atoll.engine.projects import open_project
from atoll.engine.state.session import STEPS
from atoll.model.errors import StateError
from atoll.model.state import CapsuleState
from atoll.testing.fake_layers import FakeLayered


@pytest.fixture
def hopeless(repo, atoll_home, monkeypatch):
    """A capsule that cannot be removed; returns its session, its record and what was tried."""
    said: list[str] = []
    tried = []
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


# On the fakes: what a killed command leaves, at every step


def settle(world):
    return reaper.settle(world.session, at=str(world.root))


@pytest.mark.parametrize("made", range(4))
def test_half_made_capsule_is_removed(world, noted, made):
    """It was killed after so many parts were created. There is no work to store yet."""
    x, plan = world.lease("x")
    for part in parts.registered()[:made]:
        part.create(world.session, x, plan, lock=-1)
    if made:
        world.write(x, "half", "written")
    assert settle(world) == reaper.Collected(capsules=("x",))
    world.require_nothing_left("x")
    assert (world.own_layers(), world.points(), world.warnings) == (set(), [], [])
    assert noted.calls[-2:] == [("stop", "noted"), ("remove", "noted")]


@pytest.mark.parametrize("step", STEPS["rm"][:-1])
def test_half_removed_capsule_is_removed(world, step):
    x = world.new("x")
    world.take(x)
    world.write(x, "new", "n")
    world.begin_removal(x, f"rm.{step}")
    assert world.store.capsules()[0].state is CapsuleState.REMOVING
    done = settle(world)
    assert done.capsules == ("x",)
    world.require_nothing_left("x")
    [point] = done.recovered
    assert world.points() == [f"{point}.json"]
    assert (world.session.home / "recovered" / point / "new").read_text() == "n"
    assert world.warnings == []
    assert settle(world) == reaper.Collected()


@pytest.mark.parametrize("step", STEPS["rm"][:-1])
def test_half_removed_capsule_without_work_leaves_no_point(world, step):
    x = world.new("x")
    world.begin_removal(x, f"rm.{step}")
    assert settle(world) == reaper.Collected(capsules=("x",))
    world.require_nothing_left("x")
    assert world.points() == []


def test_capsule_of_a_command_that_works_is_left_alone(world):
    x, plan = world.lease("x")
    parts.registered()[0].create(world.session, x, plan, lock=-1)
    with world.session.lock_of(x) as lock:
        assert lock.acquire()
        assert settle(world) == reaper.Collected()
        assert reaper.collect(world.session, dry_run=True).capsules == ()
    assert world.read(x, "README.md") == "# Sample\n"
    assert settle(world).capsules == ("x",)


def test_ready_capsules_are_left_alone(world):
    x = world.new("x")
    world.write(x, "new", "n")
    before = world.stored()
    assert settle(world) == reaper.Collected()
    assert world.stored() == before


def test_one_that_cannot_be_removed_does_not_block_the_others(world, monkeypatch):
    for capsule in world.new("x", "y"):
        world.write(capsule, "new", "n")
        world.begin_removal(capsule, "rm.announced")
    save = FakeLayered.save

    def fail(self, plan, **options):
        if plan.branch == "atoll/x":
            raise StateError("its disk is away")
        return save(self, plan, **options)

    monkeypatch.setattr(FakeLayered, "save", fail)
    assert settle(world).capsules == ("y",)
    assert world.warnings == ["`x` is still removing: its disk is away"]
    [left] = world.store.capsules()
    assert world.read(left, "new") == "n"
    monkeypatch.undo()


def test_parts_of_ready_capsules_are_swept(world, noted):
    """Not those of a capsule that another command works on."""
    x, y = world.new("x", "y")
    noted.calls.clear()
    with world.session.lock_of(y) as lock:
        assert lock.acquire()
        reaper.collect(world.session, dry_run=True)
    assert noted.calls == [("sweep", "noted")]
    reaper.collect(world.session, dry_run=True)
    assert noted.calls == [("sweep", "noted")] * 3
    assert world.store.capsules() == [x, y]


def test_collection_removes_what_killed_commands_left(world):
    x = world.new("x")
    world.write(x, "state", "one")
    before = world.layers()
    with world.killed_at("snapshot.sealed"):
        world.take(x)
    [left] = world.layers() - before
    planned = reaper.collect(world.session, dry_run=True)
    assert str(world.pool.layers / left) in planned.files
    assert f"layer {left}" in reaper.collect(world.session).files
    assert (world.layers(), world.read(x, "state")) == (before, "one")


def test_damaged_repository_does_not_block_a_collection(world):
    (world.repository / "objects").rmdir()
    dead = world.session.home / "locks" / "dead"
    dead.touch()
    assert str(dead) in reaper.collect(world.session).files
    assert not dead.exists()
    [warning] = world.warnings
    assert warning.startswith(f"`{world.repository}` is not cleaned up: ")
