"""What is derived from the declaration of limits."""

from __future__ import annotations

import pytest

from atoll.engine.project import levels
from atoll.model.enclosure import LIMITS, LIMITS_BY_FIELD, SETTABLE_LIMITS, Limits
from atoll.model.limits import parse_limit, render_limit


def test_every_limit_is_a_field_and_has_a_default():
    assert [kind.field for kind in LIMITS] == [*Limits._fields[: len(LIMITS)]]
    assert [*SETTABLE_LIMITS] == [*levels.require_level("sandbox").limits]
    assert [kind.name for kind in LIMITS_BY_FIELD.values()] == [*SETTABLE_LIMITS]


@pytest.mark.parametrize("kind", SETTABLE_LIMITS.values(), ids=lambda kind: kind.name)
def test_defaults_and_bounds_are_written_as_they_are_read(kind):
    bounds = (kind.lowest, kind.highest) if kind.unit in ("count", "cpus") else ()
    for value in (kind.default, *bounds):
        if value is not None:
            assert parse_limit(kind, render_limit(kind, value)) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("memory", "1023K", "must be at least `1M`"),
        ("disk", "1", "must be at least `1M`"),
        ("output", "0", "must be more than zero"),
        ("cpus", "0.001", "must be a number from 0.01 to 1024"),
        ("cpus", "nan", "must be a number from 0.01 to 1024"),
        ("pids", "0", "must be a whole number from 1 to 4194304"),
        ("files", "15", "must be a whole number from 16 to 1048576"),
        ("time", "0", "must be more than zero"),
    ],
)
def test_values_out_of_bounds_are_refused(name, text, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        parse_limit(SETTABLE_LIMITS[name], text)


def test_large_counts_are_rendered_in_full():
    assert render_limit(SETTABLE_LIMITS["files"], 1_048_576) == "1048576"
    assert render_limit(SETTABLE_LIMITS["cpus"], 2.0) == "2"


def test_limits_without_their_controller_are_watched():
    limits = Limits(memory_bytes=1, cpus=2, pids=3, files=4, disk_bytes=5)
    assert limits.watched_without(()) == Limits(memory_bytes=1, pids=3)
    assert limits.watched_without({"memory": "/a"}) == Limits(pids=3)
    assert not limits.watched_without(("memory", "pids"))
