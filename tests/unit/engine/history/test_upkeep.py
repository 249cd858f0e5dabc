"""Upkeep removes what nothing refers to any more, and nothing else."""

from __future__ import annotations

import fcntl
import os

import pytest

from atoll.engine.history import upkeep
from atoll.engine.state.leases import snapshot_layers


def collect(world, **options):
    return upkeep.collect(world.session, world.project, **options)


def test_nothing_that_is_in_use_is_collected(world):
    x = world.new("x")
    first = world.take(x)
    world.write(x, "state", "two")
    world.roll_back(x, first)
    # The layer that the rollback began and did not use.
    assert len(collect(world)) == 1
    before = world.layers()
    assert collect(world) == []
    assert world.layers() == before
    assert before >= {layer for s in world.store.snapshots(x) for layer in snapshot_layers(s)}


def test_layers_of_a_killed_command_are_collected(world):
    x = world.new("x")
    world.write(x, "state", "one")
    before = world.layers()
    with world.killed_at("snapshot.sealed"):
        world.take(x)
    left = sorted(world.layers() - before)
    assert len(left) == 1
    assert collect(world, dry_run=True) == left
    assert world.layers() > before
    assert collect(world) == left
    assert (world.layers(), world.read(x, "state")) == (before, "one")


def test_layers_of_a_fork_outlive_the_origin(world):
    x = world.new("x")
    world.write(x, "state", "one")
    first = world.take(x)
    y = world.fork(x, "y", first)
    world.write(x, "state", "two")
    world.take(x)
    world.remove(x, force=True)
    assert collect(world)
    assert world.layers() >= {*snapshot_layers(first), world.workspace(y).upper}
    assert world.read(y, "state") == "one"
    world.remove(y, force=True)
    collect(world)
    assert world.own_layers() == set()


def test_layers_of_a_capsule_that_the_database_has_lost_are_kept(world):
    """Its work is still to be stored, and the note in its directory says where it is."""
    x = world.new("x")
    world.write(x, "state", "one")
    world.take(x)
    plan = world.workspace(x)
    world.store.forget_capsule(x)
    collect(world)
    assert world.layers() >= {*plan.layers, plan.upper}
    assert world.driver.read(plan, "state") == b"one"


def test_remains_of_a_killed_builder_are_collected(world):
    world.new("x")
    place = world.pool.layers / ".new-dead"
    (place / "tree").mkdir(parents=True)
    assert collect(world) == [".new-dead"]
    assert not place.exists()


@pytest.mark.parametrize("step", ["new.frozen", "snapshot.sealed", "rollback.prepared"])
def test_nothing_is_collected_until_new_layers_are_stored(world, step):
    """`collect` waits for the exclusive lock of the pool."""
    x = world.new("x")
    first = world.take(x)
    seen = []

    def listen(reached, subject):
        if reached == step:
            seen.append(can_collect(world.pool))

    world.session.listen = listen
    world.new("y")
    world.take(x)
    world.roll_back(x, first)
    assert set(seen) == {False}
    assert can_collect(world.pool)


def can_collect(pool):
    handle = os.open(pool.layers, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def test_trash_is_emptied(world):
    x = world.new("x")
    world.remove(x)
    trash = world.session.home / "trash"
    # The directory and the upper layer of the capsule.
    assert len(list(trash.iterdir())) == 2
    assert upkeep.reclaim(world.session) == 2
    assert not trash.exists()
    assert upkeep.reclaim(world.session) == 0
