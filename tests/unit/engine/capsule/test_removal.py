"""Removal of capsules: work is stored first, and a removal that fails can be repeated."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from atoll.engine.capsule import removal
from atoll.engine.capsules import remove_all
from atoll.engine.state import descriptions
from atoll.model.errors import DriverError, Interrupted, StateError
from atoll.model.state import CapsuleState
from atoll.testing.fake_layers import FakeLayered
from present import present


def test_capsule_without_work_leaves_nothing(world):
    x = world.new("x")
    world.take(x)
    assert world.remove(x) is None
    world.require_nothing_left("x")
    assert (world.store.snapshots(), world.points()) == ([], [])
    assert world.workspace(world.new("x")).layers


def test_pristine_capsule_is_not_even_searched(world, monkeypatch):
    x = world.new("x")
    searched = []
    monkeypatch.setattr(FakeLayered, "work", lambda *_: searched.append("work"))
    monkeypatch.setattr(FakeLayered, "save", lambda *_, **__: searched.append("save"))
    world.remove(x)
    assert searched == []


def test_capsule_with_work_is_not_removed(world, noted):
    x = world.new("x")
    world.write(x, "new", "n")
    before = world.stored()
    noted.calls.clear()
    with pytest.raises(StateError, match="`x` has work that exists nowhere else") as caught:
        world.remove(x)
    assert "1 untracked: `new`" in caught.value.message
    assert "atoll commit x" in str(caught.value.hint)
    assert (world.stored(), noted.calls) == (before, [])


def test_of_several_none_is_removed_if_one_has_work(world):
    x, y = world.new("x", "y")
    world.write(y, "new", "n")
    before = world.stored()
    with pytest.raises(StateError):
        list(remove_all([world.handle(x), world.handle(y)]))
    assert world.stored() == before


def test_work_is_stored_before_anything_is_removed(world):
    x = world.new("x")
    world.write(x, "new", "n")
    world.take(x)
    world.delete(x, "README.md")
    point = world.remove(x, force=True)
    world.require_nothing_left("x")
    assert (point.capsule, point.base_commit) == ("x", world.commit)
    found = {path.name: path.read_text() for path in Path(point.files).rglob("*") if path.is_file()}
    assert found == {"new": "n", "calc.py": "one = 1\n"}
    assert world.points() == [f"{point.id}.json"]
    steps = [step for step in world.steps if step.startswith("rm.")]
    assert steps == [
        f"rm.{step}"
        for step in ("announced", "stopped", "saved", "isolation", "workspace", "files")
    ] + ["rm.forgotten"]


def test_commits_of_a_branch_that_is_kept_are_no_loss(world):
    x = world.new("x")
    world.write(x, "new", "n")
    world.commit_all(x)
    assert world.handle(x).work().commits == 1
    with pytest.raises(StateError, match="1 commit that no other branch holds"):
        world.remove(x)
    assert world.handle(x).work(keep_branch=True).commits == 0
    assert world.remove(x, keep_branch=True) is None
    world.require_nothing_left("x")


@pytest.mark.parametrize("error", [StateError, DriverError, OSError])
def test_work_that_cannot_be_stored_keeps_the_capsule(world, noted, monkeypatch, error):
    x = world.new("x")
    world.write(x, "new", "n")

    def fail(self, plan, **_):
        raise error("it cannot be read")

    monkeypatch.setattr(FakeLayered, "save", fail)
    with pytest.raises(error):
        world.remove(x, force=True)
    [left] = world.store.capsules()
    assert left.state is CapsuleState.READY
    assert world.read(x, "new") == "n"
    assert removal.is_intact(x)
    assert ("remove", "noted") not in noted.calls


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted(signal.SIGTERM)])
def test_interrupted_removal_is_withdrawn(world, noted, monkeypatch, error):
    x = world.new("x")
    world.write(x, "new", "n")

    def interrupt(self, plan, **_):
        raise error

    monkeypatch.setattr(FakeLayered, "save", interrupt)
    with pytest.raises(type(error)):
        world.remove(x, force=True)
    [left] = world.store.capsules()
    assert left.state is CapsuleState.READY
    assert world.read(x, "new") == "n"
    assert world.warnings == ["`x` is not removed; its runs may have been stopped"]


def test_part_that_cannot_be_removed_keeps_the_announcement(world, noted):
    x = world.new("x")
    world.write(x, "new", "n")
    noted.fails_in = {"remove"}
    with pytest.raises(StateError, match="`noted` fails in remove"):
        world.remove(x, force=True)
    [left] = world.store.capsules()
    assert left.state is CapsuleState.REMOVING
    # Incomplete from here on: a lost database must not bring it back.
    assert not Path(x.directory, descriptions.NAME).exists()
    [kept] = world.points()
    noted.fails_in = set()
    point = present(removal.finish(world.session, left))
    world.require_nothing_left("x")
    assert (world.points(), f"{point.id}.json") == ([kept], kept)


def test_part_that_cannot_be_stopped_keeps_everything(world, noted):
    x = world.new("x")
    world.write(x, "new", "n")
    noted.fails_in = {"stop"}
    with pytest.raises(StateError, match="`noted` fails in stop"):
        world.remove(x, force=True)
    assert world.points() == []
    assert world.read(x, "new") == "n"
    assert removal.is_intact(x)


def test_removed_capsule_is_not_removed_again(world):
    x = world.new("x")
    world.remove(x)
    with pytest.raises(StateError, match="there is no capsule `x`"):
        world.remove(x)
    again = world.new("x")
    with pytest.raises(StateError, match="`x` has been removed"):
        world.remove(x)
    assert world.store.capsules() == [again]
