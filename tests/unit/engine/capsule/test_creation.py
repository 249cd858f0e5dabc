"""Creation of capsules: all of them or none, whatever part fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.engine.state.leases import find_note, isolation_plan
from atoll.host import locks
from atoll.model.errors import DriverError, StateError
from atoll.model.state import CapsuleState
from atoll.testing.fake_layers import FakeLayered


def test_capsule_has_the_files_of_the_base(world):
    x = world.new("x")
    assert x.state is CapsuleState.READY
    assert world.read(x, "src/calc.py") == "one = 1\n"
    assert world.read(x, ".git/HEAD") == "ref: refs/heads/atoll/x\n"
    assert Path(str(isolation_plan(world.session, x).private), "home").is_dir()
    assert find_note(Path(x.directory)) == world.workspace(x)
    assert world.store.leased_ports() == set(x.ports.values()) != set()


def test_capsules_share_the_layers_and_nothing_else(world):
    x, y = world.new("x", "y")
    assert world.workspace(x).layers == world.workspace(y).layers
    world.write(x, "README.md", "changed")
    assert world.read(y, "README.md") == "# Sample\n"
    assert set(x.ports.values()).isdisjoint(y.ports.values())


def test_rows_are_stored_before_anything_is_made(world):
    with world.killed_at("new.frozen"):
        world.new("x")
    assert (world.stored(), world.own_layers()) == ([], set())
    assert not Path(world.plan("x").directory).exists()
    seen = []

    def listen(step, subject):
        if step in ("new.leased", "new.ready"):
            [capsule] = world.store.capsules()
            seen.append((step, capsule.state, bool(world.own_layers())))

    world.session.listen = listen
    world.new("x")
    assert seen == [
        ("new.leased", CapsuleState.CREATING, False),
        ("new.ready", CapsuleState.READY, True),
    ]


@pytest.mark.parametrize("error", [StateError, DriverError, OSError, KeyboardInterrupt])
def test_if_one_of_several_fails_none_is_made(world, monkeypatch, error):
    apply = FakeLayered.apply

    def fail(self, plan, *, lock):
        apply(self, plan, lock=lock)
        if plan.branch == "atoll/b":
            raise error("it failed")

    monkeypatch.setattr(FakeLayered, "apply", fail)
    with pytest.raises(error):
        world.new("a", "b", "c")
    for name in ("a", "b", "c"):
        world.require_nothing_left(name)
        assert not locks.is_locked(world.session.capsule_lock(world.project.id, name).path)
    assert (world.own_layers(), world.points()) == (set(), [])


def test_part_that_fails_takes_the_others_with_it(world, noted):
    noted.fails_in = {"create"}
    with pytest.raises(StateError, match="`noted` fails in create"):
        world.new("x")
    world.require_nothing_left("x")
    assert world.own_layers() == set()
    assert noted.calls[-1] == ("remove", "noted")


def test_taken_name_is_refused_and_the_capsule_stays(world):
    x = world.new("x")
    world.write(x, "state", "one")
    before = world.stored()
    with pytest.raises(StateError, match="the capsule `x` already exists"):
        world.new("y", "x")
    assert world.stored() == before
    assert world.read(x, "state") == "one"


def test_name_that_another_command_works_on_is_refused(world):
    with world.session.capsule_lock(world.project.id, "x") as lock:
        assert lock.acquire()
        with pytest.raises(StateError, match="another command is working on `x`"):
            world.new("x")
    assert world.stored() == []
