from __future__ import annotations

import os

import pytest

from atoll.host import cgroups
from atoll.host.cgroups import (
    CgroupParents,
    CgroupProbe,
    Hierarchy,
    find_cgroup_parents,
    make_group,
    plan_settings,
    sweep,
)
from atoll.model.enclosure import Limits
from atoll.model.spec import LimitsSpec
from present import present

V1_MEMORY = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control"]
V2_MEMORY = ["memory.max", "memory.swap.max", "memory.oom.group", "memory.events"]


def unified(own="/v2"):
    return Hierarchy(frozenset(), True, "/v2", own)


def v1(name, own=None):
    return Hierarchy(frozenset({name}), False, f"/v1/{name}", own or f"/v1/{name}")


class Host:
    """Directories that work for some uses; all others are closed. Notes what was tried."""

    def __init__(self, works):
        self.works = works
        self.tried = []

    def attempt(self, directory, uses):
        self.tried.append(directory)
        works = frozenset(uses) & frozenset(self.works.get(directory, ()))
        reasons = {use: f"{directory} has no {use}" for use in uses if use not in works}
        return CgroupProbe(f"{directory}/atoll", works, reasons)

    def places(self, *trees):
        return find_cgroup_parents(trees, self.attempt)


# Choosing


def test_version_2_comes_first_and_needs_nothing_else():
    host = Host({"/v2": ("unified", "memory", "pids", "cpu"), "/v1/memory": ("memory",)})
    found = host.places(v1("memory"), v1("freezer"), unified())
    assert found.parents == dict.fromkeys(("unified", "memory", "pids", "cpu"), "/v2/atoll")
    assert found.missing == {}
    assert host.tried == ["/v2"]


def test_version_2_without_controllers_freezes_and_version_1_limits():
    host = Host({"/v2": ("unified",), "/v1/memory": ("memory",), "/v1/cpu": ("cpu",)})
    found = host.places(v1("memory"), v1("cpu"), v1("freezer"), unified())
    assert found.parents == {
        "unified": "/v2/atoll",
        "memory": "/v1/memory/atoll",
        "cpu": "/v1/cpu/atoll",
    }
    assert found.missing == {"pids": "/v2 has no pids"}
    assert "/v1/freezer" not in host.tried


def test_without_version_2_the_old_freezer_serves():
    host = Host({"/v1/freezer": ("freezer",), "/v1/pids": ("pids",)})
    found = host.places(v1("freezer"), v1("pids"))
    assert found.parents == {"freezer": "/v1/freezer/atoll", "pids": "/v1/pids/atoll"}
    assert found.missing["unified"] == "no hierarchy with `unified` is mounted"


def test_user_gets_the_highest_place_that_works():
    host = Host(
        {"/v2/u/app": ("unified", "memory", "pids"), "/v2/u": ("unified", "memory", "pids")}
    )
    found = host.places(unified(own="/v2/u/app/term"))
    assert found.parents == dict.fromkeys(("unified", "memory", "pids"), "/v2/u/atoll")
    assert "/v2/u has no cpu" in found.missing["cpu"]


def test_place_with_more_controllers_wins_over_a_higher_one():
    host = Host({"/v2": ("unified",), "/v2/u": ("unified", "memory")})
    found = host.places(unified(own="/v2/u"))
    assert found.parents == {"unified": "/v2/u/atoll", "memory": "/v2/u/atoll"}


def test_controllers_missing_in_version_2_are_looked_for_in_version_1():
    host = Host({"/v2": ("unified", "memory"), "/v1/cpu/me": ("cpu",)})
    found = host.places(unified(), v1("cpu", own="/v1/cpu/me"))
    assert found.parents["memory"] == "/v2/atoll"
    assert found.parents["cpu"] == "/v1/cpu/me/atoll"


def test_nothing_works_and_each_reason_is_reported_once():
    host = Host({})
    found = host.places(unified(), unified(), v1("memory"))
    assert found.parents == {}
    assert sorted(found.missing) == ["cpu", "freezer", "memory", "pids", "unified"]
    assert found.missing["memory"] == "/v2 has no memory; /v1/memory has no memory"


# Settings


def test_memory_without_swap_and_killed_together():
    assert plan_settings("memory", 1 << 30, V2_MEMORY) == [
        ("memory.max", "1073741824"),
        ("memory.swap.max", "0"),
        ("memory.oom.group", "1"),
    ]


def test_memory_of_version_1_raises_the_sum_before_it_sets_both():
    assert plan_settings("memory", 4096, V1_MEMORY) == [
        ("memory.memsw.limit_in_bytes", "-1"),
        ("memory.limit_in_bytes", "4096"),
        ("memory.memsw.limit_in_bytes", "4096"),
    ]


def test_hosts_that_do_not_count_swap():
    assert plan_settings("memory", 4096, ["memory.limit_in_bytes"]) == [
        ("memory.limit_in_bytes", "4096")
    ]
    assert plan_settings("memory", 4096, ["memory.max"]) == [("memory.max", "4096")]


@pytest.mark.parametrize(
    ("cpus", "v2", "quota"),
    [
        (2, "200000 100000", "200000"),
        (0.5, "50000 100000", "50000"),
        (0.001, "1000 100000", "1000"),
        (None, "max 100000", "-1"),
    ],
)
def test_cpus_are_a_share_of_a_period(cpus, v2, quota):
    assert plan_settings("cpu", cpus, ["cpu.max", "cpu.stat"]) == [("cpu.max", v2)]
    assert plan_settings("cpu", cpus, ["cpu.cfs_quota_us", "cpu.cfs_period_us"]) == [
        ("cpu.cfs_period_us", "100000"),
        ("cpu.cfs_quota_us", quota),
    ]


def test_no_file_no_setting():
    for use in ("memory", "pids", "cpu"):
        assert plan_settings(use, 100, ["cgroup.procs"]) == []


def test_limit_taken_away():
    assert plan_settings("pids", None, ["pids.max"]) == [("pids.max", "max")]
    assert ("memory.max", "max") in plan_settings("memory", None, V2_MEMORY)
    assert plan_settings("memory", None, V1_MEMORY)[1] == ("memory.limit_in_bytes", "-1")


def test_missing_file_is_a_reason_and_is_not_made(tmp_path):
    assert "no limit for `pids`" in present(cgroups.set_limit(str(tmp_path), "pids", 5))
    assert list(tmp_path.iterdir()) == []


def test_limit_that_does_not_show_afterwards_does_not_hold(tmp_path):
    (tmp_path / "pids.max").symlink_to(os.devnull)
    assert "did not accept `5`" in present(cgroups.set_limit(str(tmp_path), "pids", 5))
    (tmp_path / "pids.max").unlink()
    (tmp_path / "pids.max").touch()
    assert cgroups.set_limit(str(tmp_path), "pids", 5) is None


@pytest.mark.parametrize(
    ("found", "text", "holds"),
    [
        ("64\n", "64", True),
        ("max\n", "64", False),
        ("0\n", "64", False),
        ("67108864\n", "67108864", True),
        ("67108864\n", "67108865", True),
        ("67108864\n", "77108864", False),
        ("67112960\n", "67108864", False),
        ("50000 100000\n", "50000 100000", True),
        ("max 100000\n", "50000 100000", False),
    ],
)
def test_what_was_written_has_to_be_there_rounded_to_pages(found, text, holds):
    assert cgroups._holds(found, text) is holds


# Groups where there is no place


def test_limits_without_a_place_are_unmet_with_their_reasons():
    places = CgroupParents({}, {"memory": "closed", "cpu": "not offered", "pids": "closed, too"})
    made = make_group(places, "h-c", Limits(memory_bytes=1 << 20, cpus=1.0))
    assert made.directories == {}
    assert made.unmet == {"memory": "closed", "cpus": "not offered"}


def test_limits_of_the_project_file_fit():
    places = CgroupParents({}, {"pids": "closed", "memory": "closed, too"})
    given = LimitsSpec.model_validate({"pids": 5, "memory": "1G"}).model_dump(by_alias=True)
    made = make_group(places, "h-c", Limits.of(given))
    assert made.unmet == {"pids": "closed", "memory": "closed, too"}


def test_place_that_went_away_is_a_reason(tmp_path):
    places = CgroupParents({"pids": str(tmp_path / "gone" / "atoll")}, {})
    made = make_group(places, "h-c", Limits(pids=5))
    assert made.directories == {}
    assert "No such file" in made.unmet["pids"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a.b", "-a", "a b", "probe-1-ab", "a" * 201]
)
def test_names_that_could_leave_the_place_or_hide_a_file(name):
    with pytest.raises(ValueError, match="name"):
        make_group(CgroupParents({}, {}), name, Limits())


def test_sweep_needs_a_prefix(tmp_path):
    with pytest.raises(ValueError, match="prefix"):
        sweep(CgroupParents({"pids": str(tmp_path)}, {}), "", lambda _: False)


def test_sweep_of_places_that_were_never_used(tmp_path):
    swept = sweep(CgroupParents({"pids": str(tmp_path / "atoll")}, {}), "h-", lambda _: False)
    assert swept == ([], {})


# Whose directory


def test_parent_of_another_user_is_not_used(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a directory away")
    directory = str(tmp_path)
    assert cgroups._parent_in(directory) == f"{directory}/atoll"
    (tmp_path / "atoll").mkdir()
    assert cgroups._parent_in(directory) == f"{directory}/atoll"
    os.chown(tmp_path / "atoll", 65_534, 65_534)
    assert cgroups._parent_in(directory) == f"{directory}/atoll-0"


def test_parent_made_for_this_user_comes_first(tmp_path):
    for name in ("atoll", f"atoll-{os.geteuid()}"):
        (tmp_path / name).mkdir()
    assert cgroups._parent_in(str(tmp_path)) == f"{tmp_path}/atoll-{os.geteuid()}"


# Version 2: what the files say. Enabling for real needs a host with controllers.


def fake_v2(place, controllers, enabled=""):
    place.mkdir()
    (place / "cgroup.controllers").write_text(controllers)
    (place / "cgroup.subtree_control").write_text(enabled)
    return str(place)


def test_controller_that_is_not_offered_or_enabled_already(tmp_path):
    directory = fake_v2(tmp_path / "a", "memory pids\n", "memory\n")
    assert cgroups._enable_in(directory, "cpu") == f"`{directory}` does not offer `cpu`"
    assert cgroups._enable_in(directory, "memory") is None
    assert (tmp_path / "a" / "cgroup.subtree_control").read_text() == "memory\n"
    assert cgroups._enable_in(directory, "pids") is None
    assert (tmp_path / "a" / "cgroup.subtree_control").read_text().startswith("+pids")
