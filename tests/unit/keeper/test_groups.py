"""What the files of both versions say; what the kernel does: integration/test_limits_kernel."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from atoll.keeper.groups import Group


def lay(place, **files):
    place.mkdir()
    for name, text in files.items():
        (place / name.replace("__", ".")).write_text(text)
    return str(place)


@pytest.fixture
def v2(tmp_path):
    directory = lay(
        tmp_path / "v2",
        memory__current="1048576\n",
        memory__peak="2097152\n",
        memory__events="low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 1\n",
        pids__current="5\n",
        pids__events="max 4\n",
        cpu__stat="usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n",
    )
    return Group(dict.fromkeys(("memory", "pids", "cpu", "unified"), directory))


@pytest.fixture
def v1(tmp_path):
    memory = lay(
        tmp_path / "memory",
        memory__usage_in_bytes="4096\n",
        memory__max_usage_in_bytes="8192\n",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 6\n",
    )
    pids = lay(tmp_path / "pids", pids__current="1\n", pids__events="max 9\n")
    cpu = lay(
        tmp_path / "cpu",
        cpu__stat="nr_periods 1\nnr_throttled 1\nthrottled_time 5\n",
        cpuacct__usage="1500000000\n",
    )
    return Group({"memory": memory, "pids": pids, "cpu": cpu})


def seen(group):
    usage, events = group.usage(), group.events()
    return (
        (usage.memory_bytes, usage.memory_peak_bytes, usage.cpu_s, usage.pids),
        (events.oom_kills, events.refused_forks),
    )


def test_version_2(v2):
    assert seen(v2) == ((1 << 20, 2 << 20, 2.5, 5), (2, 4))


def test_version_1(v1):
    assert seen(v1) == ((4096, 8192, 1.5, 1), (6, 9))


def test_what_is_not_counted_is_none_and_not_nothing(tmp_path):
    bare = lay(tmp_path / "bare", cpu__stat="nr_periods 1\n", memory__peak="max\n")
    assert seen(Group({"cpu": bare, "memory": bare})) == ((None,) * 4, (None,) * 2)
    assert seen(Group({})) == ((None,) * 4, (None,) * 2)


def test_group_that_is_gone_or_that_never_was(tmp_path):
    for group in (
        Group({}),
        Group({"pids": str(tmp_path / "gone"), "unified": str(tmp_path / "x")}),
    ):
        assert group.pids() == []
        assert group.freeze() is False
        assert group.thaw() is False
        assert group.kill() is True
        assert group.remove() == []


def test_entering_what_is_gone_fails_and_makes_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        Group({"pids": str(tmp_path)}).enter()
    assert os.listdir(tmp_path) == []


def test_each_directory_is_entered_once_by_the_caller(tmp_path):
    directory = lay(tmp_path / "g", cgroup__procs="")
    other = lay(tmp_path / "h", cgroup__procs="")
    Group({"memory": directory, "pids": directory, "cpu": other}).enter()
    # A second write would go over the first one here, but "00" or more would tell of appending.
    assert (tmp_path / "g" / "cgroup.procs").read_text() == "0"
    assert (tmp_path / "h" / "cgroup.procs").read_text() == "0"


def test_version_1_is_entered_as_a_thread_for_which_nobody_waits(tmp_path):
    directory = lay(tmp_path / "g", tasks="", cgroup__procs="")
    Group({"pids": directory}).enter()
    assert (tmp_path / "g" / "tasks").read_text() == "0"
    assert (tmp_path / "g" / "cgroup.procs").read_text() == ""


def test_processes_of_subgroups_count_and_each_only_once(tmp_path):
    lay(tmp_path / "g", cgroup__procs="7\n0\n8\n")
    lay(tmp_path / "g" / "inner", cgroup__procs="9\n")
    lay(tmp_path / "h", cgroup__procs="8\n10\n")
    group = Group({"memory": str(tmp_path / "g"), "pids": str(tmp_path / "h")})
    assert sorted(group.pids()) == [7, 8, 9, 10]


def test_process_that_cannot_be_seen_is_not_forgotten_and_never_signalled(tmp_path):
    """Pid 0 stands for those of other pid namespaces; a signal to it would go to ourselves."""
    group = Group({"pids": lay(tmp_path / "g", cgroup__procs="0\n")})
    assert group.pids() == []
    assert group.kill(timeout_s=0.05) is False


def test_namesake_of_a_process_that_has_left_is_spared(tmp_path, monkeypatch):
    """Between the reading of a pid and the signal the process may end, and the number be reused."""
    with subprocess.Popen(["sleep", "60"]) as bystander:
        readings = iter([[bystander.pid], []])
        monkeypatch.setattr(Group, "pids", lambda _: next(readings))
        Group({"pids": str(tmp_path)})._signal(signal.SIGKILL)
        assert next(readings, "all read") == "all read"
        with pytest.raises(subprocess.TimeoutExpired):
            bystander.wait(0.3)
        readings = iter([[bystander.pid], [bystander.pid]])
        Group({"pids": str(tmp_path)})._signal(signal.SIGKILL)
        assert bystander.wait(30) == -signal.SIGKILL
