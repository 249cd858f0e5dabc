"""The shared fixtures keep their own law: nothing of the owner's comes in, nothing stays behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

LEAVES_PROCESSES = """
import os, pytest, subprocess

@pytest.mark.parametrize("trace", ["home", "place"])
def test_leaves_a_process(atoll_home, tmp_path, trace):
    env = {"PATH": os.environ["PATH"], "ATOLL_RUN": "r1"}
    if trace == "home":
        env["HOME"] = f"{atoll_home}/h"
    process = subprocess.Popen(["sleep", "300"], env=env, cwd=tmp_path if trace == "place" else "/")
    process.returncode = 0  # as if forgotten: no warning about a child that still runs

def test_leaves_nothing(atoll_home):
    subprocess.run(["true"], env={**os.environ, "ATOLL_RUN": "r1"}, check=True)
"""


def test_environment_is_clean(atoll_home, git, repo, monkeypatch):
    foreign = {name for name in os.environ if name.startswith(("ATOLL_", "GIT_"))}
    ours = {"ATOLL_HOME", "ATOLL_LEVEL", "ATOLL_DAEMON"}
    assert foreign == {*ours, "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"}
    assert not atoll_home.exists()
    assert git("log", "--format=%an %s", cwd=repo).splitlines() == [
        "Test Owner second",
        "Test Owner first",
    ]
    assert git("status", "--porcelain", cwd=repo) == ""
    assert git("branch", "--show-current", cwd=repo).strip() == "main"


def test_repositories_of_any_shape(make_repo, git):
    empty = make_repo(files={}, name="empty")
    assert git("rev-parse", "--verify", "HEAD", cwd=empty, check=False) == ""
    odd = make_repo(files={"a b/ü.bin": b"\0\xff"}, name='it\'s "odd"')
    assert git("ls-files", "-z", cwd=odd) == "a b/ü.bin\0"


def test_processes_are_found_by_their_environment(processes_with, wait_for, tmp_path):
    marker = f"MARKER={tmp_path}"
    assert processes_with(marker) == []
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "MARKER": str(tmp_path)}) as process:
        wait_for(lambda: processes_with(marker) == [process.pid], what="the process in the list")
        process.kill()
    assert processes_with(marker) == []


def test_waiting_has_an_end(wait_for):
    with pytest.raises(pytest.fail.Exception, match=r"the moon: not within 0\.1 s"):
        wait_for(lambda: False, timeout_s=0.1, what="the moon")


def test_missing_tool_skips_on_a_laptop_and_fails_in_ci(require_tool, monkeypatch):
    assert require_tool("git")
    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception, match="no-such-tool"):
        require_tool("no-such-tool")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no-such-tool"):
        require_tool("no-such-tool")


def test_left_process_fails_the_test_and_is_killed(root, tmp_path, processes_with):
    for name in ("conftest.py", "matches.py"):
        shutil.copy(root / "tests" / name, tmp_path)
    (tmp_path / "test_planted.py").write_text(LEAVES_PROCESSES, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "markers=slow",
         tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_ADDOPTS": f"--basetemp={tmp_path / 'base'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    assert result.returncode == 1, result.stdout
    assert "3 passed, 2 errors" in result.stdout
    assert result.stdout.count("Failed: processes left behind (now killed)") >= 2
    assert processes_with(f"HOME={tmp_path}/") == []
