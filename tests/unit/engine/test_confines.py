"""Which limit is held how, on each kind of host."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from atoll.engine import confines, doctor
from atoll.host import cgroups
from atoll.host.cgroups import Made, Places
from atoll.keeper.groups import Group
from atoll.model.errors import StateError

LIMITS = {
    "memory_bytes": 1 << 30, "cpus": 2.0, "pids": 100, "disk_bytes": 1 << 30, "files": 100,
    "idle_s": 60.0, "output_bytes": 1 << 20,
}  # fmt: skip
ALWAYS = {
    "disk_bytes": "watched", "files": "enforced", "idle_s": "watched", "output_bytes": "watched",
}  # fmt: skip
V2 = dict.fromkeys(("unified", "memory", "pids", "cpu"), "/v2/atoll")
V1 = {use: f"/v1/{use}/atoll" for use in ("memory", "pids", "cpu", "freezer")}
NO_GROUPS = {"memory_bytes": "watched", "pids": "watched", "cpus": "not held"}
WAYS = {
    "version 2": (V2, dict.fromkeys(("memory_bytes", "pids", "cpus"), "enforced")),
    "version 1": (V1, dict.fromkeys(("memory_bytes", "pids", "cpus"), "enforced")),
    "version 2 without controllers": ({"unified": "/v2/atoll"}, NO_GROUPS),
    "a group for memory alone": (
        {"unified": "/v2/atoll", "memory": "/v2/atoll"}, {**NO_GROUPS, "memory_bytes": "enforced"},
    ),
    "no groups": ({}, NO_GROUPS),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_each_limit_is_told_as_it_is_held(tmp_path, monkeypatch, way):
    parents, expected = WAYS[way]
    monkeypatch.setattr(confines, "find_places", lambda _: Places(parents, {}))
    told = confines.tell(SimpleNamespace(home=tmp_path), LIMITS)
    assert {name: value for name, (value, _) in told.items()} == LIMITS
    assert {name: how for name, (_, how) in told.items()} == {**ALWAYS, **expected}


@pytest.mark.parametrize("way", WAYS)
def test_doctor_says_the_same(monkeypatch, way):
    parents, expected = WAYS[way]
    uses = ("memory", "pids", "cpu")
    missing = {use: f"no {use}" for use in uses if use not in parents}
    monkeypatch.setattr(cgroups, "find_places", lambda: Places(parents, missing))
    said = dict(part.split(": ", 1) for part in doctor._limits().split("; "))
    for limit, how in expected.items():
        name = limit.removesuffix("_bytes")
        assert name in said[how]
        assert (
            f"{name} (no {name.removesuffix('s') if name == 'cpus' else name})" in said[how]
        ) is (how != "enforced")


@pytest.mark.parametrize(
    ("limit", "use"), [("memory", "memory"), ("cpus", "cpu"), ("pids", "pids")]
)
def test_limit_that_the_kernel_refuses_is_left_to_the_keeper(tmp_path, monkeypatch, limit, use):
    """It watches what its group does not serve."""
    made = Made(dict.fromkeys(V2, str(tmp_path)), {limit: "Invalid argument"})
    monkeypatch.setattr(confines, "find_places", lambda _: Places(V2, {}))
    monkeypatch.setattr(cgroups, "make_group", lambda *_: made)
    capsule = SimpleNamespace(id=1)
    group = confines.open_group(SimpleNamespace(home=tmp_path), capsule, LIMITS)
    assert set(group) == set(V2) - {use}


@pytest.fixture
def stuck(tmp_path, monkeypatch):
    """A capsule with a process that does not end, which cannot be had on demand: nothing is sent
    to it here, and a directory plays its group.
    """
    monkeypatch.setattr(confines, "find_places", lambda _: Places({"unified": str(tmp_path)}, {}))
    monkeypatch.setattr(Group, "kill", lambda _: False)
    said = []
    store = SimpleNamespace(capsules=list)
    session = SimpleNamespace(home=tmp_path / "home", store=store, warn=said.append)
    capsule = SimpleNamespace(id=7, name="x")
    group = tmp_path / confines._name(session, capsule)
    group.mkdir()
    (group / "cgroup.procs").write_text("4194300\n")
    return session, capsule, group, said


def test_a_capsule_is_not_gone_while_its_processes_are_there(stuck):
    session, capsule, group, _ = stuck
    with pytest.raises(StateError, match="`x` cannot be killed: 4194300"):
        confines.close_group(session, capsule)
    # As a control: once they have ended, it is.
    (group / "cgroup.procs").unlink()
    confines.close_group(session, capsule)
    assert not group.exists()


def test_processes_of_a_removed_capsule_are_told(stuck):
    session, _, group, said = stuck
    assert confines.sweep(session) == []
    assert said == [f"processes of `{group.name}` cannot be killed: 4194300"]
    (group / "cgroup.procs").unlink()
    assert confines.sweep(session) == [group.name]


@pytest.mark.parametrize("way", WAYS)
def test_chosen_limits_that_are_not_held(tmp_path, monkeypatch, way):
    parents, expected = WAYS[way]
    monkeypatch.setattr(confines, "find_places", lambda _: Places(parents, {}))
    session = SimpleNamespace(home=tmp_path)
    unheld = ["cpus"] if expected["cpus"] == "not held" else []
    assert confines.find_unheld(session, ["memory", "cpus", "disk"]) == unheld
    assert confines.find_unheld(session, ["memory", "disk"]) == []
