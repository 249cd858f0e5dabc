"""Which limit is held how, on each kind of host."""

from __future__ import annotations

import os

import pytest

from atoll.engine import doctor
from atoll.engine.enclosure import cgroup_limits
from atoll.engine.state.session import Session
from atoll.engine.state.store import Store
from atoll.host import cgroups, scopes
from atoll.host.cgroups import CgroupParents, CreatedCgroup
from atoll.host.scopes import NoAnswerError, ScopeError, Scopes
from atoll.keeper.groups import Group
from atoll.model import enclosure
from atoll.model.enclosure import Limits
from atoll.model.errors import StateError
from atoll.model.spec import LimitsSpec
from atoll.model.state import CapsuleRecord, CapsuleState
from present import present

LIMITS = Limits(
    memory_bytes=1 << 30, cpus=2.0, pids=100, disk_bytes=1 << 30, files=100,
    idle_s=60.0, output_bytes=1 << 20,
)  # fmt: skip
ALWAYS = {
    "disk_bytes": "watched", "files": "enforced", "idle_s": "watched", "output_bytes": "watched",
}  # fmt: skip
V2 = dict.fromkeys(("unified", "memory", "pids", "cpu"), "/v2/atoll")
V1 = {use: f"/v1/{use}/atoll" for use in ("memory", "pids", "cpu", "freezer")}
NO_GROUPS = {"memory_bytes": "watched", "pids": "watched", "cpus": "not enforced"}
WAYS = {
    "version 2": (V2, dict.fromkeys(("memory_bytes", "pids", "cpus"), "enforced")),
    "version 1": (V1, dict.fromkeys(("memory_bytes", "pids", "cpus"), "enforced")),
    "version 2 without controllers": ({"unified": "/v2/atoll"}, NO_GROUPS),
    "a group for memory alone": (
        {"unified": "/v2/atoll", "memory": "/v2/atoll"}, {**NO_GROUPS, "memory_bytes": "enforced"},
    ),
    "no groups": ({}, NO_GROUPS),
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_manager(monkeypatch):
    """Whoever runs the tests may have one."""
    monkeypatch.setattr(scopes, "find_manager", lambda: None)


def record(number, name="x"):
    return CapsuleRecord(
        id=number, project_id="p", name=name, level="sandbox", state=CapsuleState.READY,
        base_commit="c" * 40, base_ref="main", branch=None, workspace="/w", directory="/h",
        created_at=0.0, time_limit_s=None, ports={},
    )  # fmt: skip


@pytest.fixture
def session(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    made = Session(home=home, store=Store(home), owner={})
    yield made
    made.store.close()


@pytest.mark.parametrize("way", WAYS)
def test_each_limit_is_reported_as_enforced_or_not(session, monkeypatch, way):
    parents, expected = WAYS[way]
    monkeypatch.setattr(cgroup_limits, "find_cgroup_parents", lambda _: CgroupParents(parents, {}))
    told = cgroup_limits.describe(session, LIMITS)
    assert {name: value for name, (value, _) in told.items()} == LIMITS.by_field()
    assert {name: how for name, (_, how) in told.items()} == {**ALWAYS, **expected}


@pytest.mark.parametrize("way", WAYS)
def test_doctor_says_the_same(monkeypatch, way):
    parents, expected = WAYS[way]
    uses = ("memory", "pids", "cpu")
    missing = {use: f"no {use}" for use in uses if use not in parents}
    monkeypatch.setattr(cgroups, "find_cgroup_parents", lambda: CgroupParents(parents, missing))
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
def test_limit_that_the_kernel_refuses_is_left_to_the_keeper(
    session, tmp_path, monkeypatch, limit, use
):
    """It watches what its group does not serve."""
    made = CreatedCgroup(dict.fromkeys(V2, str(tmp_path)), {limit: "Invalid argument"})
    monkeypatch.setattr(cgroup_limits, "find_cgroup_parents", lambda _: CgroupParents(V2, {}))
    monkeypatch.setattr(cgroups, "make_group", lambda *_: made)
    group = cgroup_limits.open_group(session, record(1), LIMITS)
    assert set(group) == set(V2) - {use}


@pytest.fixture
def stuck(session, tmp_path, monkeypatch):
    """A capsule with a process that does not end, which cannot be had on demand: nothing is sent
    to it here, and a directory plays its group.
    """
    monkeypatch.setattr(
        cgroup_limits,
        "find_cgroup_parents",
        lambda _: CgroupParents({"unified": str(tmp_path)}, {}),
    )
    monkeypatch.setattr(Group, "kill", lambda _: False)
    said: list[str] = []
    session.warn = said.append
    capsule = record(7)
    group = tmp_path / cgroup_limits._name(session, capsule)
    group.mkdir()
    (group / "cgroup.procs").write_text("4194300\n")
    return session, capsule, group, said


def test_a_capsule_is_not_gone_while_its_processes_are_there(stuck):
    session, capsule, group, _ = stuck
    with pytest.raises(StateError, match=r"`x`.*4194300"):
        cgroup_limits.close_group(session, capsule)
    # As a control: once they have ended, it is.
    (group / "cgroup.procs").unlink()
    cgroup_limits.close_group(session, capsule)
    assert not group.exists()


def test_processes_of_a_removed_capsule_are_reported(stuck):
    session, _, group, said = stuck
    assert cgroup_limits.sweep(session) == []
    assert said == [f"processes of `{group.name}` cannot be killed: 4194300"]
    (group / "cgroup.procs").unlink()
    assert cgroup_limits.sweep(session) == [group.name]


@pytest.mark.parametrize("way", WAYS)
def test_chosen_limits_that_are_not_held(session, monkeypatch, way):
    parents, expected = WAYS[way]
    monkeypatch.setattr(cgroup_limits, "find_cgroup_parents", lambda _: CgroupParents(parents, {}))
    unheld = ["cpus"] if expected["cpus"] == "not enforced" else []
    assert cgroup_limits.find_unheld(session, ["memory", "cpus", "disk"]) == unheld
    assert cgroup_limits.find_unheld(session, ["memory", "disk"]) == []


# Scopes of the systemd user manager.

ALL = Scopes("/app.slice", ["unified", "memory", "pids", "cpu"], {})
SOME = Scopes("/app.slice", ["unified", "memory"], {"pids": "no pids", "cpu": "no cpu"})
NONE = Scopes("/app.slice", ["unified"], dict.fromkeys(("memory", "pids", "cpu"), "nothing"))
NO_PLACES = CgroupParents({}, dict.fromkeys(("memory", "pids", "cpu", "unified"), "denied"))


@pytest.mark.parametrize(
    ("direct", "scoped", "expected"),
    [
        ({}, None, False),
        ({}, ALL, True),
        ({}, SOME, True),
        ({}, NONE, False),
        (V2, None, False),
        (V2, ALL, True),
        (V2, SOME, False),
        (V1, ALL, True),
        ({"unified": "/v2/atoll"}, NONE, False),
    ],
)
def test_scope_is_preferred_where_it_holds_no_less(direct, scoped, expected):
    assert cgroup_limits.prefers_scope(direct, scoped) is expected


def test_reasons_of_both_are_reported():
    assert cgroup_limits.choose(NO_PLACES, ALL).missing == {}
    assert cgroup_limits.choose(NO_PLACES, SOME).missing == {"pids": "no pids", "cpu": "no cpu"}
    chosen = cgroup_limits.choose(NO_PLACES, NONE)
    assert chosen.parents == {}
    assert chosen.missing["memory"] == "denied; nothing"
    assert chosen.missing["unified"] == "denied"
    assert cgroup_limits.choose(NO_PLACES, None) == NO_PLACES


@pytest.fixture
def managed(session, monkeypatch):
    """`managed(SCOPES or an error)`: a home whose user has a manager that says this."""
    monkeypatch.setattr(scopes, "find_manager", lambda: "/run/manager")
    monkeypatch.setattr(cgroup_limits, "find_cgroup_parents", lambda _: NO_PLACES)
    asked = []

    def prepare(answer):
        def try_scopes(manager):
            asked.append(manager)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(scopes, "try_scopes", try_scopes)
        return session, asked

    return prepare


def test_scopes_are_tried_once_per_boot(managed):
    session, asked = managed(ALL)
    assert cgroup_limits.find_scopes(session.home) == ALL
    assert cgroup_limits.find_scopes(session.home) == ALL
    assert asked == ["/run/manager"]
    told = cgroup_limits.describe(session, LIMITS)
    assert {told[name][1] for name in ("memory_bytes", "pids", "cpus")} == {"enforced"}
    assert cgroup_limits.find_unheld(session, ["cpus"]) == []


def test_scopes_that_cannot_be_used_are_tried_once_per_boot(managed):
    session, asked = managed(ScopeError("refused"))
    assert present(cgroup_limits.find_scopes(session.home)).missing["memory"] == "refused"
    assert present(cgroup_limits.find_scopes(session.home)).uses == []
    assert len(asked) == 1
    assert cgroup_limits.describe(session, LIMITS)["memory_bytes"][1] == "watched"


def test_manager_that_does_not_answer_is_asked_again(managed):
    session, asked = managed(NoAnswerError("hangs"))
    assert cgroup_limits.find_scopes(session.home) is None
    assert cgroup_limits.find_scopes(session.home) is None
    assert len(asked) == 2


def test_what_is_remembered_does_not_count_without_a_manager(managed, monkeypatch):
    session, _ = managed(ALL)
    cgroup_limits.find_scopes(session.home)
    monkeypatch.setattr(scopes, "find_manager", lambda: None)
    assert cgroup_limits.find_scopes(session.home) is None
    assert cgroup_limits.describe(session, LIMITS)["memory_bytes"][1] == "watched"
    assert cgroup_limits.plan_scope(session, record(7), LIMITS) is None


def test_living_holder_knows_better_than_what_is_remembered(managed):
    session, _ = managed(ALL)
    told = cgroup_limits.describe(
        session, LIMITS, {"pid": os.getpid(), "held": ["unified", "pids"]}
    )
    assert [told[name][1] for name in ("memory_bytes", "pids", "cpus")] == [
        "watched", "enforced", "not enforced",
    ]  # fmt: skip
    # One of a former version says nothing, and has no scope.
    assert (
        cgroup_limits.describe(session, LIMITS, {"pid": os.getpid()})["memory_bytes"][1]
        == "watched"
    )


def test_no_scope_without_limits(managed):
    session, asked = managed(ALL)
    assert cgroup_limits.plan_scope(session, record(7), Limits()) is None
    assert asked == []


def test_holder_without_a_scope_after_all(managed, monkeypatch):
    session, _ = managed(ALL)
    said: list[str] = []
    session.warn = said.append

    def refuse(*_):
        raise ScopeError("refused")

    monkeypatch.setattr(scopes, "start", refuse)
    confine = present(cgroup_limits.plan_scope(session, record(7), LIMITS))
    assert confine(1) == ({},)
    assert said == ["the limits of `x` are not enforced: refused"]


@pytest.mark.parametrize("scoped", [ALL, None, NONE])
def test_doctor_says_that_it_is_by_a_scope(monkeypatch, scoped):
    monkeypatch.setattr(cgroups, "find_cgroup_parents", lambda: NO_PLACES)
    monkeypatch.setattr(scopes, "find_manager", lambda: "/run/manager")
    monkeypatch.setattr(cgroup_limits, "try_scopes", lambda _: scoped)
    said = doctor._limits()
    is_scoped = scoped is ALL
    assert said.endswith("; by a scope of the systemd user manager") is is_scoped
    assert said.startswith("enforced: memory, cpus, pids;") is is_scoped
    assert ("denied" in said) is not is_scoped


def test_scopes_of_capsules_that_are_no_more_are_swept(managed, tmp_path, monkeypatch):
    session, _ = managed(ALL._replace(directory=str(tmp_path / "app.slice")))
    living, gone, stuck = (record(number, f"c{number}") for number in (1, 2, 3))
    said: list[str] = []
    ended: list[str] = []
    session.warn = said.append
    monkeypatch.setattr(session.store, "capsules", lambda: [living])
    units = {
        capsule.id: scopes.unit_name(cgroup_limits._name(session, capsule))
        for capsule in (living, gone, stuck)
    }
    others = scopes.unit_name("0a0b0c0d-2")
    for unit in (*units.values(), others):
        (tmp_path / "app.slice" / unit).mkdir(parents=True)

    def end(scope):
        ended.append(os.path.basename(scope))
        return [4194300] if ended[-1] == units[3] else []

    monkeypatch.setattr(scopes, "end", end)
    assert cgroup_limits.sweep(session) == [units[2]]
    assert sorted(ended) == sorted([units[2], units[3]])
    name = cgroup_limits._name(session, stuck)
    assert said == [f"processes of `{name}` cannot be killed: 4194300"]
    with pytest.raises(StateError, match=r"`c3`.*4194300"):
        cgroup_limits.close_group(session, stuck)
    cgroup_limits.close_group(session, gone)


def test_settings_and_project_file_know_the_declared_limits():
    names = {kind.name for kind in enclosure.LIMITS}
    fields = {kind.field for kind in enclosure.LIMITS}
    assert {*enclosure.SETTABLE_LIMITS} == names | {"time"}
    assert {*LimitsSpec.model_fields} == fields | {"time_s"}
