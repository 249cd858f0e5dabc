"""Limits against what the machine has."""

from __future__ import annotations

import os
import resource
import subprocess

from atoll.engine.enclosure import cgroup_limits

HAS = {"memory": 1 << 30, "cpus": 2.0, "pids": 100, "files": 1000, "disk": 1 << 40}


def test_excess_is_named():
    said = cgroup_limits.describe_excess({"memory": 1 << 31, "cpus": 2.0, "pids": 101}, HAS)
    assert "`memory=2G` (of 1G)" in said
    assert "`pids=101` (of 100)" in said
    assert "cpus" not in said
    assert cgroup_limits.describe_excess({**HAS, "idle": 1e9, "output": None}, HAS) == ""


def test_capacity_is_that_of_this_machine(tmp_path):
    found = cgroup_limits.capacity(tmp_path)
    assert found["cpus"] == os.cpu_count()
    assert found["memory"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert min(found.values()) > 0


def test_files_in_force_are_those_of_the_process_that_starts_others():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # A little stays for those who start others: `process_limits.files_limit`.
    assert hard * 3 // 4 <= cgroup_limits.files_in_force(hard + 1) < hard
    assert cgroup_limits.files_in_force(50) == 50
    with subprocess.Popen(["sleep", "600"]) as process:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (64, 64))
        assert cgroup_limits.files_in_force(hard, process.pid) == 48
        process.kill()
    assert cgroup_limits.files_in_force(50, process.pid) == 50
