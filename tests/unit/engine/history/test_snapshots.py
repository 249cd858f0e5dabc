"""Snapshots, rollbacks and forks: what is stored, what is not, and what a failure leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.engine.browser import profiles
from atoll.engine.capsule import parts
from atoll.engine.history import snapshots
from atoll.engine.history.workspace import Workspace
from atoll.engine.state.leases import find_note, snapshot_layers
from atoll.host import files, locks
from atoll.model.errors import DriverError, StateError
from atoll.model.state import CapsuleState, SnapshotKind
from atoll.testing.fake_layers import FakeLayered
from layered_world import NotedPart

# Taking one


def test_snapshot_holds_the_moment(world):
    x = world.new("x")
    world.write(x, "state", "one")
    made = world.take(x, "first")
    world.write(x, "state", "two")
    world.delete(x, "README.md")
    assert world.read_at(x, made, "state") == "one"
    assert world.read_at(x, made, "README.md") == "# Sample\n"
    assert (world.read(x, "state"), world.read(x, "README.md")) == ("two", None)
    assert (made.number, made.message, made.kind) == (1, "first", SnapshotKind.MANUAL)
    assert made.moment == "nothing runs"
    assert world.store.snapshots(x) == [made]


def test_snapshot_and_the_plan_to_go_on_with_are_stored_together(world):
    """Until then the capsule has its old plan, which names a layer that is not frozen."""
    x = world.new("x")
    before = world.workspace(x)
    seen = []

    def listen(step, subject):
        if step.startswith("snapshot."):
            seen.append((step, len(world.store.snapshots(x)), world.workspace(x) == before))

    world.session.listen = listen
    made = world.take(x)
    assert seen == [("snapshot.sealed", 0, True), ("snapshot.recorded", 1, False)]
    assert snapshot_layers(made) == (*before.layers, before.upper)
    after = world.workspace(x)
    assert after.layers == snapshot_layers(made)
    assert find_note(Path(x.directory)) == after


def test_snapshot_killed_before_it_is_stored_is_none(world):
    x = world.new("x")
    world.write(x, "state", "one")
    before = world.stored()
    with world.killed_at("snapshot.sealed"):
        world.take(x)
    assert world.stored() == before
    assert world.read(x, "state") == "one"
    world.write(x, "state", "two")
    assert world.read_at(x, world.take(x), "state") == "two"


def test_numbers_are_of_one_capsule(world):
    x, y = world.new("x", "y")
    assert [world.take(x).number, world.take(x).number, world.take(y).number] == [1, 2, 1]
    assert [s.capsule_id for s in world.store.snapshots(y)] == [y.id]


def test_has_changed_follows_the_last_snapshot(world):
    x = world.new("x")
    workspace = Workspace()
    assert workspace.has_changed(world.session, x)
    world.take(x)
    assert not workspace.has_changed(world.session, x)
    world.delete(x, "README.md")
    assert workspace.has_changed(world.session, x)


def test_part_that_fails_leaves_no_snapshot(world, noted):
    x = world.new("x")
    world.write(x, "state", "one")
    world.take(x)
    world.write(x, "state", "two")
    noted.count(world.session, x)
    before = world.stored()
    noted.fails_in = {"snapshot"}
    with pytest.raises(StateError, match="`noted` fails in snapshot"):
        world.take(x)
    assert world.stored() == before
    world.write(x, "state", "three")
    noted.fails_in = set()
    made = world.take(x)
    assert (made.number, world.read_at(x, made, "state")) == (2, "three")


@pytest.mark.parametrize("fails_in", ["quiesce", "snapshot"])
def test_parts_before_the_one_that_fails_are_let_go(world, noted, fails_in):
    last = NotedPart("last", noted.calls)
    parts.register(last)
    x = world.new("x")
    noted.calls.clear()
    last.fails_in = {fails_in}
    with pytest.raises(StateError):
        world.take(x)
    assert noted.calls[-1] == ("resume", "noted")
    assert not locks.is_locked(world.session.view_lock(x).path)


def test_driver_that_fails_leaves_no_snapshot(world, monkeypatch):
    x = world.new("x")
    before = world.stored()

    def fail(self, plan, *, busy):
        raise DriverError("the disk is away")

    monkeypatch.setattr(FakeLayered, "seal", fail)
    with pytest.raises(DriverError):
        world.take(x)
    assert world.stored() == before


# Timeline


def test_timeline_names_what_was_written_up_to_each(world):
    x = world.new("x")
    world.write(x, "a", "1")
    world.take(x, "one")
    world.write(x, "b", "22")
    world.write(x, "deep/c", "333")
    world.take(x, "two")
    world.take(x, "nothing new")
    found = snapshots.timeline(world.session, x)
    assert [entry.snapshot.message for entry in found] == ["one", "two", "nothing new"]
    assert [entry.paths for entry in found] == [("a",), ("b", "deep/c"), ()]
    # The first one also has HEAD and the branch.
    assert [entry.files for entry in found] == [3, 2, 0]
    assert found[1].bytes > 0 == found[2].bytes


def test_end_of_a_timeline_counts_only_its_own(world):
    x = world.new("x")
    for name in ("a", "b", "c"):
        world.write(x, name, name)
        world.take(x, name)
    found = snapshots.timeline(world.session, x, count=1)
    assert [(entry.snapshot.message, entry.paths) for entry in found] == [("c", ("c",))]
    assert snapshots.timeline(world.session, x, count=9) == snapshots.timeline(world.session, x)


def test_timeline_after_a_rollback_does_not_count_twice(world):
    x = world.new("x")
    world.write(x, "a", "1")
    first = world.take(x)
    world.write(x, "b", "2")
    world.roll_back(x, first)
    world.write(x, "c", "3")
    world.take(x)
    found = snapshots.timeline(world.session, x)
    assert [entry.paths for entry in found] == [("a",), ("b",), ("c",)]


# Rolling back


def test_rollback_returns_and_can_be_undone(world):
    x = world.new("x")
    world.write(x, "state", "one")
    first = world.take(x, "first")
    world.write(x, "state", "two")
    world.delete(x, "README.md")
    undo = world.roll_back(x, first)
    assert (world.read(x, "state"), world.read(x, "README.md")) == ("one", "# Sample\n")
    assert (undo.kind, undo.message) == (SnapshotKind.ROLLBACK, "before rollback to first")
    assert find_note(Path(x.directory)) == world.workspace(x)
    world.roll_back(x, undo)
    assert (world.read(x, "state"), world.read(x, "README.md")) == ("two", None)
    assert world.read_at(x, first, "state") == "one"


def test_rollback_twice_to_the_same(world):
    x = world.new("x")
    world.write(x, "state", "one")
    first = world.take(x)
    for text in ("two", "three"):
        world.write(x, "state", text)
        world.roll_back(x, first)
        assert world.read(x, "state") == "one"
    undone = [world.read_at(x, s, "state") for s in world.store.snapshots(x)]
    assert undone == ["one", "two", "three"]


def test_rollback_restores_the_payloads_of_parts(world, noted):
    x = world.new("x")
    noted.count(world.session, x)
    first = world.take(x)
    noted.count(world.session, x)
    undo = world.roll_back(x, first)
    assert noted.value(world.session, x) == 1
    assert (first.parts["noted"], undo.parts["noted"]) == ("1", "2")


def test_latest_snapshot_is_not_that_of_a_rollback(world):
    x = world.new("x")
    with pytest.raises(StateError, match="`x` has no snapshot"):
        snapshots.require_snapshot(world.session, x, None)
    first = world.take(x)
    second = world.take(x)
    world.roll_back(x, first)
    assert snapshots.require_snapshot(world.session, x, None) == second
    assert snapshots.require_snapshot(world.session, x, "1") == first


@pytest.mark.parametrize("text", ["0", "3", "-1", "x", "", "1.0"])
def test_missing_snapshot(world, text):
    x = world.new("x")
    world.take(x)
    with pytest.raises(StateError, match="has no snapshot") as caught:
        snapshots.require_snapshot(world.session, x, text)
    assert caught.value.hint == "atoll snapshots x"


def test_rollback_to_a_snapshot_of_another_capsule_is_refused(world, noted):
    x, y = world.new("x", "y")
    world.write(x, "state", "of x")
    world.write(y, "state", "of y")
    foreign = world.take(y)
    before = world.stored()
    noted.calls.clear()
    with pytest.raises(StateError, match="is not a snapshot of `x`") as caught:
        world.roll_back(x, foreign)
    assert caught.value.hint == "atoll snapshots x"
    assert (world.stored(), noted.calls) == (before, [])
    assert world.read(x, "state") == "of x"


def test_rollback_to_a_snapshot_whose_layer_is_gone_is_refused(world, noted):
    x = world.new("x")
    first = world.take(x)
    world.write(x, "state", "two")
    files.remove_tree(world.pool.layers / snapshot_layers(first)[-1], within=world.session.home)
    before = world.stored()
    noted.calls.clear()
    with pytest.raises(StateError, match="snapshot 1 of `x` is incomplete"):
        world.roll_back(x, first)
    assert (world.stored(), noted.calls) == (before, [])


def test_rollback_that_fails_changes_nothing(world, noted):
    x = world.new("x")
    world.write(x, "state", "one")
    first = world.take(x)
    world.write(x, "state", "two")
    before = world.stored()
    noted.fails_in = {"restore"}
    with pytest.raises(StateError, match="`noted` fails in restore"):
        world.roll_back(x, first)
    assert world.stored() == before
    assert world.read(x, "state") == "two"
    assert ("sweep", "noted") not in noted.calls
    noted.fails_in = set()
    world.roll_back(x, first)
    assert world.read(x, "state") == "one"


@pytest.mark.parametrize("step", ["rollback.sealed", "rollback.prepared"])
def test_killed_rollback_changes_nothing(world, step):
    x = world.new("x")
    world.write(x, "state", "one")
    first = world.take(x)
    world.write(x, "state", "two")
    before = world.stored()
    with world.killed_at(step):
        world.roll_back(x, first)
    assert world.stored() == before
    assert world.read(x, "state") == "two"


def test_killed_after_a_rollback_was_stored(world):
    x = world.new("x")
    world.write(x, "state", "one")
    first = world.take(x)
    world.write(x, "state", "two")
    with world.killed_at("rollback.recorded"):
        world.roll_back(x, first)
    assert world.read(x, "state") == "one"
    assert world.read_at(x, world.store.snapshots(x)[-1], "state") == "two"
    assert find_note(Path(x.directory)) == world.workspace(x)


# Forks


def test_fork_starts_from_the_snapshot_and_goes_its_own_way(world, noted):
    x = world.new("x")
    world.write(x, "state", "one")
    noted.count(world.session, x)
    first = world.take(x)
    world.write(x, "state", "two")
    noted.count(world.session, x)
    y = world.fork(x, "y", first)
    assert (y.state, y.level, y.base_commit) == (CapsuleState.READY, x.level, x.base_commit)
    assert (world.read(y, "state"), noted.value(world.session, y)) == ("one", 1)
    assert (x.branch, y.branch) == ("atoll/x", "atoll/y")
    assert world.read(y, ".git/HEAD") == "ref: refs/heads/atoll/y\n"
    assert world.store.snapshots(y) == []
    world.write(y, "state", "three")
    world.write(x, "state", "four")
    assert (world.read(x, "state"), world.read(y, "state")) == ("four", "three")
    assert world.read_at(x, first, "state") == "one"
    assert find_note(Path(y.directory)) == world.workspace(y)


def test_fork_of_a_fork_outlives_its_origins(world):
    x = world.new("x")
    world.write(x, "state", "one")
    y = world.fork(x, "y", world.take(x))
    z = world.fork(y, "z", world.take(y))
    for capsule in (x, y):
        world.remove(capsule, force=True)
    assert world.read(z, "state") == "one"


@pytest.mark.parametrize("fails_in", ["first", "last"])
def test_fork_that_fails_leaves_nothing(world, noted, fails_in, monkeypatch):
    x = world.new("x")
    world.write(x, "state", "one")
    first = world.take(x)
    before, layers = world.stored(), world.layers()
    if fails_in == "last":
        noted.fails_in = {"fork"}
    else:

        def fail(self, plan, *, former):
            raise StateError("the repository was replaced")

        monkeypatch.setattr(FakeLayered, "rename", fail)
    with pytest.raises(StateError):
        world.fork(x, "y", first)
    assert world.stored() == before
    assert world.layers() == layers
    assert not Path(world.plan("y").directory).exists()
    assert not locks.is_locked(world.session.capsule_lock(world.project.id, "y").path)
    assert world.points() == []


def test_fork_of_a_taken_name_is_refused(world):
    x, y = world.new("x", "y")
    first = world.take(x)
    before = world.stored()
    with pytest.raises(StateError, match="the capsule `y` already exists"):
        world.fork(x, "y", first)
    assert world.stored() == before
    assert world.read(y, "README.md") == "# Sample\n"


def test_fork_at_a_snapshot_whose_layer_is_gone_is_refused(world):
    x = world.new("x")
    first = world.take(x)
    files.remove_tree(world.pool.layers / snapshot_layers(first)[-1], within=world.session.home)
    before = world.stored()
    with pytest.raises(StateError, match="snapshot 1 of `x` is incomplete"):
        world.fork(x, "y", first)
    assert world.stored() == before


def test_fork_at_a_snapshot_of_another_capsule_is_refused(world):
    x, y = world.new("x", "y")
    foreign = world.take(y)
    before = world.stored()
    with pytest.raises(StateError, match="is not a snapshot of `x`"):
        world.fork(x, "z", foreign)
    assert world.stored() == before


# The browser profile, a part that copies


@pytest.fixture
def profile(world):
    """A capsule with a profile, and the directory of that."""
    x = world.new("x")
    place = profiles.require(world.session, x, "fake")
    (place / "cache").write_text("large")
    return x, place


def cookies(world, capsule):
    place = profiles.path_of(capsule, profiles.current(world.session, capsule))
    return (place / "cookies").read_text(), (place / "cache").exists()


def test_profile_follows_the_capsule(world, profile):
    x, place = profile
    (place / "cookies").write_text("one")
    first = world.take(x)
    (place / "cookies").write_text("two")
    undo = world.roll_back(x, first)
    assert cookies(world, x) == ("one", False)
    fork = world.fork(x, "y", undo)
    assert cookies(world, fork) == ("two", False)
    world.roll_back(x, undo)
    assert cookies(world, x) == ("two", False)


def test_unchanged_profile_is_copied_once(world, profile):
    x, place = profile
    (place / "cookies").write_text("one")
    first, second = world.take(x), world.take(x)
    assert first.parts["browser"] == second.parts["browser"]
    (place / "cookies").write_text("two")
    assert world.take(x).parts["browser"] != first.parts["browser"]


def test_rollback_without_the_profile_of_the_snapshot_changes_nothing(world, profile):
    """The workspace was prepared by then."""
    x, place = profile
    (place / "cookies").write_text("one")
    world.write(x, "state", "one")
    first = world.take(x)
    world.write(x, "state", "two")
    files.remove_tree(profiles.path_of(x, first.parts["browser"]), within=world.session.home)
    before = world.stored()
    with pytest.raises(StateError, match="is missing"):
        world.roll_back(x, first)
    assert world.stored() == before
    assert world.read(x, "state") == "two"


def test_changed_profile_is_noticed(world, profile):
    x, place = profile
    part = profiles.BrowserProfile()
    assert part.has_changed(world.session, x), "no snapshot holds it yet"
    world.take(x)
    (place / "cache").write_text("larger")
    assert not part.has_changed(world.session, x)
    (place / "cookies").write_text("one")
    assert part.has_changed(world.session, x)
    world.take(x)
    assert not part.has_changed(world.session, x)
    profiles.forget(world.session, x)
    assert part.has_changed(world.session, x)
    world.take(x)
    assert not part.has_changed(world.session, x)


def test_profiles_that_nothing_refers_to_are_swept(world, profile):
    x, place = profile
    (place / "cookies").write_text("one")
    first = world.take(x)
    with world.killed_at("rollback.prepared"):
        world.roll_back(x, first)
    part = profiles.BrowserProfile()
    [found] = part.sweep(world.session, x, dry_run=True)
    assert Path(found).is_dir()
    assert part.sweep(world.session, x) == [found]
    assert not Path(found).exists()
    assert (cookies(world, x), part.sweep(world.session, x)) == (("one", True), [])


# The order of parts


def test_parts_are_made_in_order_and_removed_backwards(world, noted):
    parts.register(NotedPart("last", noted.calls))
    assert [part.name for part in parts.registered()] == [
        *("workspace", "isolation", "browser", "secrets", "agent", "noted", "last"),
    ]
    x = world.new("x")
    both = ["noted", "last"]
    assert noted.calls == [("create", name) for name in both]
    noted.calls.clear()
    first = world.take(x)
    assert noted.calls == [
        *(("quiesce", name) for name in both),
        *(("snapshot", name) for name in both),
        *(("resume", name) for name in reversed(both)),
    ]
    noted.calls.clear()
    world.roll_back(x, first)
    assert noted.calls == [
        *((verb, name) for verb in ("stop", "quiesce", "restore") for name in both),
        *(("resume", name) for name in reversed(both)),
        *(("sweep", name) for name in both),
    ]
    noted.calls.clear()
    world.fork(x, "y", first)
    assert noted.calls == [("fork", name) for name in both]
    noted.calls.clear()
    world.remove(x)
    assert noted.calls == [
        *(("stop", name) for name in both),
        *(("remove", name) for name in reversed(both)),
    ]
    steps = [step for step in world.steps if step.startswith("rm.")]
    assert steps.index("rm.isolation") < steps.index("rm.workspace")


def test_part_of_the_same_name_replaces_the_first(world, noted):
    other = NotedPart("noted")
    parts.register(other)
    world.new("x")
    assert (noted.calls, other.calls) == ([], [("create", "noted")])
