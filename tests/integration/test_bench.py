"""`atoll bench workspace` on shrunken projects: it measures, reports, and leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess

import pytest

from matches import matching

SHRUNK = ("--scale", "0.004", "--repeat", "2")


def names_of(data):
    return {(row["size"][0], row["what"]) for row in data["rows"]}


@pytest.fixture
def place(tmp_path):
    made = tmp_path / "place"
    made.mkdir()
    return made


@pytest.mark.slow
def test_everything_is_measured_and_nothing_is_left(atoll, atoll_home, place, processes_with):
    said = atoll(
        "bench", "workspace", *SHRUNK, "--place", place, "--size", "S", "--size", "M", "--json",
        timeout_s=240,
    )  # fmt: skip
    data = json.loads(said.stdout)["data"]
    told = names_of(data)
    assert ("S", "clone + first command") in told
    assert ("M", "visible removal") in told
    assert ("M", "rollback after 100 changed files") in told
    assert ("M", "refresh of the base by `warm`") in told
    peers = {row["peer"] for row in data["rows"] if row["size"].startswith("M")}
    assert {"git worktree add", "cp -a of everything", "plain walk of the tree"} <= peers
    for row in data["rows"]:
        assert row["samples"], row
        assert all(sample >= 0 for sample in row["samples"])
        assert (row["ratio"] is None) == (not row["peer_samples"])
    assert data["machine"]["cores"] >= 1
    opened = [row for row in data["rows"] if row["unit"] == "files"]
    assert all(row["median"] == 0 for row in opened)
    assert list(place.iterdir()) == []
    assert not atoll_home.exists()
    assert processes_with(str(place)) == []


def test_only_what_was_asked_for(atoll, place):
    said = atoll(
        "bench", "workspace", *SHRUNK, "--size", "S", "--only", "status", "--place", place,
        timeout_s=120,
    )  # fmt: skip
    assert "first git status" in said.stdout
    assert "visible removal" not in said.stdout
    assert said.stdout.startswith("machine ")
    assert list(place.iterdir()) == []


def test_kept_projects_are_clean_and_used_again(atoll, place, tmp_path, git):
    words = ("bench", "workspace", *SHRUNK, "--size", "M", "--only", "refresh", "--only", "peers")
    kept = tmp_path / "kept"
    atoll(*words, "--keep", kept, "--place", place, timeout_s=120)
    (root,) = kept.iterdir()
    assert git("for-each-ref", "--format=%(refname)", cwd=root).split() == ["refs/heads/main"]
    assert len(git("worktree", "list", cwd=root).splitlines()) == 1
    before = (root / "node_modules" / ".package-lock.json").stat().st_ino
    atoll(*words, "--keep", kept, "--place", place, timeout_s=120)
    assert (root / "node_modules" / ".package-lock.json").stat().st_ino == before
    assert list(place.iterdir()) == []


def test_network_is_measured_against_direct_connections(atoll, place):
    words = ("bench", "network", "--scale", "0.01", "--repeat", "4", "--place", place, "--json")
    data = json.loads(atoll(*words, timeout_s=120).stdout)["data"]
    rows = {row["what"]: row for row in data["rows"]}
    assert rows["10 MiB through a published port"]["peer"] == "direct"
    assert len(rows["a request over an open connection"]["samples"]) == 400
    assert rows["added to a request over an open connection"]["aim"] == "≤ 0.30 ms"
    beside = rows["a request beside a neighbour that floods the daemon"]
    assert (beside["peer"], beside["aim"]) == ("alone", "≤ 2x")
    past = rows["the same, and the flood does not go through the daemon"]
    assert len(past["samples"]) == len(beside["samples"]) == 400
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(number, start_cli, place, wait_for, processes_with, tmp_path):
    cli = start_cli(
        "bench", "workspace", "--scale", "0.02", "--size", "M", "--place", str(place), cwd=tmp_path
    )
    wait_for(lambda: matching(place, "*/home/projects/*/c*/runs"), timeout_s=60, what="a capsule")
    cli.send_signal(number)
    # Removing takes its time; who is impatient must not keep it from being done.
    for _ in range(20):
        with contextlib.suppress(subprocess.TimeoutExpired):
            cli.wait(timeout=0.05)
        cli.send_signal(number)
    assert cli.wait(timeout=60) == 128 + number
    assert list(place.iterdir()) == []
    assert processes_with(str(place)) == []


def test_bad_requests(atoll, tmp_path):
    for words, code, text in [
        (("bench",), 2, "workspace"),
        (("bench", "everything"), 2, "workspace"),
        (("bench", "workspace", "--size", "XL"), 2, "XL"),
        (("bench", "workspace", "--scale", "2"), 2, "scale"),
        (("bench", "workspace", "--repeat", "0"), 2, "repeat"),
        (("bench", "workspace", "--place", tmp_path / "nowhere"), 4, "nowhere"),
    ]:
        said = atoll(*words, check=False)
        assert (said.returncode, text in said.stderr) == (code, True), said.stderr


@pytest.mark.slow
def test_idle_runs_are_measured_and_nothing_is_left(atoll, place, processes_with):
    if shutil.which("bwrap") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("bwrap is missing")
        pytest.skip("bwrap is missing")
    said = atoll(
        "bench", "idle", "--scale", "0.02", "--repeat", "2", "--place", place, "--json",
        timeout_s=240,
    )  # fmt: skip
    [row] = json.loads(said.stdout)["data"]["rows"]
    assert row["what"] == "processor time per second of 2 idle runs"
    assert len(row["samples"]) == 2
    assert list(place.iterdir()) == []
    assert processes_with(str(place)) == []


@pytest.mark.slow
def test_a_race_is_measured_against_worktrees(atoll, place, processes_with):
    said = atoll(
        "bench", "race", "--scale", "0.002", "--repeat", "1", "--size", "M", "--quick",
        "--place", place, "--json", timeout_s=240,
    )  # fmt: skip
    data = json.loads(said.stdout)["data"]
    set_up, added, check = data["rows"]
    assert added["what"] == "what a fresh capsule adds to an empty check"
    assert set_up["peer"] == "git worktree add + cp -a of what it lacks"
    assert (len(set_up["samples"]), len(set_up["peer_samples"])) == (10, 3)
    assert check["peer"] == "the same command in the checkout"
    assert set_up["met"] is check["met"] is None
    assert [text for text in data["skipped"] if "10 worktrees" in text]
    assert list(place.iterdir()) == []
    assert processes_with(str(place)) == []
