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


def test_version_2(tmp_path):
    events = "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 1\n"
    directory = lay(tmp_path / "v2", memory__events=events)
    assert Group({"memory": directory, "unified": directory}).oom_kills() == 2


def test_version_1(tmp_path):
    control = "oom_kill_disable 0\nunder_oom 0\noom_kill 6\n"
    memory = lay(tmp_path / "memory", memory__oom_control=control)
    assert Group({"memory": memory}).oom_kills() == 6


def test_what_is_not_counted_is_none_and_not_nothing(tmp_path):
    bare = lay(tmp_path / "bare", memory__peak="max\n")
    assert Group({"cpu": bare, "memory": bare}).oom_kills() is None
    assert Group({}).oom_kills() is None


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


def test_version_1_is_entered_as_a_thread_without_a_grace_period(tmp_path):
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
