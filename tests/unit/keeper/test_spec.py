"""What a minder makes of `spec.json`, also of one that an earlier version wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atoll.keeper.spec import KeeperSpecError, RunDefaults, load_spec
from atoll.model.enclosure import Bwrap, Limits

WALLS = Bwrap("/usr/bin/bwrap", "/mnt", ("--proc", "/proc"), b"f", None, "/w")
IMPOSED = RunDefaults(WALLS, Limits(pids=5))
EARLIER: dict[str, Any] = {
    "run": "0" * 16, "argv": ["true"], "env": {}, "cwd": "/w", "tty": False, "rows": 24,
    "cols": 80, "foreground": False, "stdin": "null", "timeout_s": None, "grace_s": 5.0,
    "log_limit_bytes": 1024, "hold_ports": [], "limits": {"pids": 9, "upper": "/u"},
    "walls": {"program": "/evil", "room": "/", "options": [], "filter": "", "uid": None},
}  # fmt: skip


@pytest.fixture
def load(tmp_path):
    def load(imposed=None, *, is_owners=False, **changes):
        (tmp_path / "spec.json").write_text(json.dumps({**EARLIER, **changes}))
        return load_spec(str(tmp_path), imposed, is_owners=is_owners)

    return load


def test_walls_and_limits_are_those_of_the_holder(load):
    spec = load(IMPOSED)
    assert (spec.walls, spec.limits) == (WALLS, Limits(pids=5))
    assert load(IMPOSED, walls=None).walls == WALLS


def test_walls_can_be_narrowed(load):
    walls = {**EARLIER["walls"], "write": ["src/**"], "alone": True, "workspace": "/"}
    assert load(IMPOSED, walls=walls).walls == WALLS.narrowed_to(("src/**",), alone=True)


@pytest.mark.parametrize("walls", [{"write": "src"}, {"write": [1]}, {"alone": 1}, [], "x"])
def test_narrowing_of_another_type_is_refused(load, walls):
    with pytest.raises(KeeperSpecError):
        load(IMPOSED, walls=walls)


def test_command_of_atoll_can_only_narrow_the_walls_of_the_view(load):
    open_spec = load(walls=None, limits=None)
    assert RunDefaults(None, None).on_command(open_spec) == open_spec
    imposed = IMPOSED.on_command(open_spec)
    assert (imposed.walls, imposed.limits) == (WALLS, Limits(pids=5))
    asked = open_spec._replace(walls=WALLS._replace(program="/evil", write=("a",), alone=True))
    assert IMPOSED.on_command(asked).walls == WALLS.narrowed_to(("a",), alone=True)


def test_owners_program_has_no_walls(load):
    assert load(IMPOSED, is_owners=True).walls is None


def test_walls_where_the_view_has_none_are_refused(load):
    with pytest.raises(KeeperSpecError, match="walls"):
        load(RunDefaults(None, None))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"more": 1}, "more"),
        ({"argv": []}, "argv"),
        ({"argv": "true"}, "argv"),
        ({"stdin": "file"}, "stdin"),
        ({"hold_ports": [0]}, "hold_ports"),
        ({"hold_ports": ["80"]}, "hold_ports"),
        ({"env": {"A": 1}}, "env"),
        ({"rows": -1}, "rows"),
        ({"timeout_s": 1e16}, "timeout_s"),
        ({"tty": 0}, "tty"),
    ],
)
def test_wrong_spec_is_refused(load, change, named):
    with pytest.raises(KeeperSpecError, match=named):
        load(IMPOSED, **change)
