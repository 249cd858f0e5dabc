from __future__ import annotations

import os

import pytest

from atoll.host import cgroups
from atoll.host.cgroups import Hierarchy, find_unified, load_hierarchies, parse_hierarchies

PLAIN = "22 1 0:21 / /proc rw,relatime - proc proc rw\n"
V2 = "41 31 0:38 {root} {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "35 31 0:32 {root} {mount} rw,relatime - cgroup cgroup rw,{names}\n"


def test_unified_alone():
    text = PLAIN + V2.format(root="/", mount="/sys/fs/cgroup")
    (found,) = parse_hierarchies(text, "0::/user.slice/a:b\n")
    assert found == Hierarchy(frozenset(), True, "/sys/fs/cgroup", "/sys/fs/cgroup/user.slice/a:b")
    assert found.candidates() == [
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/user.slice",
        "/sys/fs/cgroup/user.slice/a:b",
    ]


def test_each_controller_of_version_1_has_its_own_place():
    mountinfo = (
        V1.format(root="/", mount="/cg/cpu,cpuacct", names="cpu,cpuacct")
        + V1.format(root="/", mount="/cg/memory", names="memory")
        + V1.format(root="/", mount="/cg/systemd", names="xattr,name=systemd")
        + V2.format(root="/", mount="/cg/unified")
    )
    cgroup = "4:memory:/jobs/7\n3:cpu,cpuacct:/\n2:pids:/unmounted\n1:name=systemd:/init\n0::/\n"
    found = {tree.mount: tree for tree in parse_hierarchies(mountinfo, cgroup)}
    assert found["/cg/memory"].own == "/cg/memory/jobs/7"
    assert found["/cg/cpu,cpuacct"].controllers == {"cpu", "cpuacct"}
    assert found["/cg/systemd"].own == "/cg/systemd/init"
    assert found["/cg/unified"].is_unified
    assert len(found) == 4


def test_in_a_container_the_mount_is_its_own_group():
    mountinfo = V1.format(root="/docker/abc", mount="/sys/fs/cgroup/memory", names="memory")
    (found,) = parse_hierarchies(mountinfo, "4:memory:/docker/abc/inner\n")
    assert found.candidates() == ["/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/inner"]


def test_own_group_outside_of_the_mount():
    mountinfo = V2.format(root="/docker/abc", mount="/m")
    for path in ("/docker/abcd", "/../other", "/"):
        (found,) = parse_hierarchies(mountinfo, f"0::{path}\n")
        assert found.candidates() == ["/m"]


def test_mount_points_with_blanks_are_unescaped():
    (found,) = parse_hierarchies(V2.format(root="/", mount=r"/my\040cgroup"), "0::/\n")
    assert found.mount == "/my cgroup"


def test_this_host_is_understood():
    for tree in load_hierarchies():
        assert os.path.isdir(tree.mount)
        assert tree.own.startswith(tree.mount)


def test_process_that_is_gone_is_nowhere():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert load_hierarchies(pid) == []
    assert find_unified(pid) is None


@pytest.mark.parametrize(
    ("own", "group", "expected"),
    [
        ("session.scope", "manager/a.scope/atoll/1", False),
        ("manager/terminal.scope", "manager/a.scope/atoll/1", True),
        ("manager/a.scope/keeper", "manager/a.scope/atoll/1", True),
    ],
)
def test_group_can_be_entered_from_below_what_is_ours(tmp_path, monkeypatch, own, group, expected):
    for path in (own, group):
        (tmp_path / path).mkdir(parents=True)
    for path in ("manager", "manager/a.scope"):
        (tmp_path / path / "cgroup.procs").touch()
    monkeypatch.setattr(cgroups, "find_unified", lambda: str(tmp_path / own))
    assert cgroups.can_enter([str(tmp_path / group)]) is expected


def test_group_cannot_be_entered_without_version_2(monkeypatch):
    monkeypatch.setattr(cgroups, "find_unified", lambda: None)
    assert not cgroups.can_enter(["/x"])
