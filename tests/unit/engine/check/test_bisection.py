"""Which points a search has, and which of them it tries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.check.bisection import choose_probes, line_of, require_one, runs_between
from atoll.model.check import CheckSpec
from atoll.model.errors import SpecError
from atoll.model.state import Run, RunState, Snapshot, SnapshotKind


def taken(number, target=None, kind=SnapshotKind.MANUAL):
    kind = SnapshotKind.ROLLBACK if target is not None else kind
    return Snapshot(number, 1, number, "", kind, False, float(number), target=target)


def numbers(*snapshots):
    return [point.snapshot.number for point in line_of(snapshots)]


def test_a_line_without_rollbacks_is_all_of_it():
    assert numbers(taken(1), taken(2, kind=SnapshotKind.AUTOMATIC), taken(3)) == [1, 2, 3]
    assert numbers() == []


def test_what_a_rollback_left_behind_is_not_on_the_line():
    assert numbers(taken(1), taken(2), taken(3), taken(4, target=1), taken(5)) == [1, 5]
    # Forward again, to a state that had been left.
    assert numbers(taken(1), taken(2), taken(3, target=1), taken(4, target=2)) == [1, 2]
    # Back to a state that a rollback stored.
    line = [taken(1), taken(2), taken(3, target=1), taken(4), taken(5, target=3), taken(6)]
    assert numbers(*line) == [1, 6]


def test_the_target_of_an_early_version_or_a_missing_snapshot_ends_the_line():
    early = taken(3, target=0)._replace(target=None, kind=SnapshotKind.ROLLBACK)
    assert numbers(taken(1), taken(2), early, taken(4)) == [4]
    assert numbers(taken(1), taken(3), taken(4, target=2), taken(5)) == [1, 5]


def test_a_point_knows_since_when_the_capsule_came_to_it():
    line = line_of([taken(1), taken(2), taken(3, target=1), taken(4)])
    assert [(point.snapshot.number, point.since) for point in line] == [(1, 0.0), (4, 3.0)]


@given(st.lists(st.integers(0, 9), max_size=9))
def test_a_line_is_ascending_and_ends(targets):
    snapshots = [
        taken(number, target if target < number and target else None)
        for number, target in enumerate(targets, start=1)
    ]
    found = numbers(*snapshots)
    assert found == sorted(set(found))


@given(st.integers(0, 30), st.integers(0, 30), st.sets(st.integers(0, 30)), st.integers(1, 8))
def test_probes_lie_between_and_are_different(low, high, skipped, count):
    probes = choose_probes(low, high, skipped, count)
    assert probes == sorted(set(probes))
    assert len(probes) <= count
    assert all(low < probe < high and probe not in skipped for probe in probes)
    is_open = any(low < index < high for index in set(range(31)) - skipped)
    assert bool(probes) == is_open


def test_runs_between_two_points():
    def ran(number, began, ended, *, internal=False):
        return Run(number, 1, "x", number, "t", ("c",), RunState.ENDED, False, False, "",
                   began, ended, internal=internal)  # fmt: skip

    [_, point] = line_of([taken(1), taken(2), taken(3, target=1), taken(4)])
    found = [ran(1, 1.5, 1.6), ran(2, 3.2, 3.3), ran(3, 2.9, None), ran(4, 3.5, 3.6, internal=True),
             ran(5, 4.1, 5.0)]  # fmt: skip
    assert [run.number for run in runs_between(found, [point])] == [2, 3]


def test_one_check_must_be_chosen():
    specs = [CheckSpec("a", "true"), CheckSpec("b", "true")]
    assert require_one(specs[:1]).name == "a"
    with pytest.raises(SpecError, match="several checks: `a`, `b`"):
        require_one(specs)
