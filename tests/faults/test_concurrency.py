"""Many commands at once: each succeeds or fails cleanly, and none gets what another one has."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import atoll as library
from atoll.testing.faults import find_leftovers, left_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MANY = 50
SOME = 20
DEADLINE_S = 240


@pytest.fixture
def ask(atoll: Callable[..., Any], repo: Path) -> Callable[..., Any]:
    return lambda *args: json.loads(atoll(*args, "--json", cwd=repo).stdout)["data"]


@pytest.fixture(autouse=True)
def _nothing_runs(atoll_home: Path) -> Iterator[None]:
    yield
    assert left_processes(atoll_home) == []


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S * 2)
def test_fifty_made_and_removed_at_once(at_once, ask, atoll_home, repo):
    """The names are each other's beginnings (`c-1`, `c-11`): records must not be mixed up."""
    names = [f"c-{number}" for number in range(1, MANY + 1)]
    made = at_once(*(["new", name] for name in names))
    assert [done for done in made if done.code != 0] == []
    capsules = ask("ls")
    assert sorted(capsule["name"] for capsule in capsules) == sorted(names)
    assert {capsule["state"] for capsule in capsules} == {"ready"}
    assert len({capsule["branch"] for capsule in capsules}) == MANY
    assert len({capsule["workspace"] for capsule in capsules}) == MANY
    assert len({capsule["ports"]["web"] for capsule in capsules}) == MANY
    assert all((Path(capsule["workspace"]) / "app.py").is_file() for capsule in capsules)
    assert find_leftovers(atoll_home, repo, living=names) == []

    removed = at_once(*(["rm", name] for name in names))
    assert [done for done in removed if done.code != 0] == []
    assert ask("ls") == []
    assert find_leftovers(atoll_home, repo) == []


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S * 2)
def test_made_and_removed_side_by_side(at_once, atoll, ask, atoll_home, repo):
    """Half of them go while the other half come."""
    atoll("new", "old", "-n", str(SOME), cwd=repo)
    old = [["rm", f"old-{number}"] for number in range(1, SOME + 1)]
    # A removal looks for records that begin like its own.
    new = [["new", f"old-{number}{number}"] for number in range(11, 11 + SOME)]
    done = at_once(*(command for pair in zip(old, new, strict=True) for command in pair))
    assert [one for one in done if one.code != 0] == []
    names = sorted(command[1] for command in new)
    assert sorted(capsule["name"] for capsule in ask("ls")) == names
    assert find_leftovers(atoll_home, repo, living=names) == []


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S * 2)
def test_fifty_want_one_name(at_once, ask, atoll_home, repo):
    done = at_once(*(["new", "same"] for _ in range(MANY)))
    winners = [one for one in done if one.code == 0]
    assert len(winners) == 1
    assert [one for one in done if one.code != 0 and not one.is_clean] == []
    assert [capsule["name"] for capsule in ask("ls")] == ["same"]
    assert find_leftovers(atoll_home, repo, living=["same"]) == []


def test_many_remove_one(at_once, atoll, ask, atoll_home, repo):
    atoll("new", "x", cwd=repo)
    done = at_once(*(["rm", "x"] for _ in range(SOME)))
    assert [one for one in done if one.code == 0] != []
    assert [one for one in done if one.code != 0 and not one.is_clean] == []
    assert ask("ls") == []
    assert find_leftovers(atoll_home, repo) == []


def test_many_force_one_with_work(at_once, atoll, ask, atoll_home, repo):
    """The work is stored once, whichever command is first."""
    atoll("new", "x", cwd=repo)
    workspace = Path(atoll("path", "x", cwd=repo).stdout.strip())
    (workspace / "work.txt").write_text("work\n")
    done = at_once(*(["rm", "x", "--force"] for _ in range(SOME)))
    assert [one for one in done if one.code != 0 and not one.is_clean] == []
    assert ask("ls") == []
    assert len(ask("recover")) == 1
    assert find_leftovers(atoll_home, repo) == []
    atoll("recover", "x", cwd=repo)
    assert (workspace / "work.txt").read_text() == "work\n"


def test_many_recover_one(at_once, atoll, ask, atoll_home, repo):
    atoll("new", "x", cwd=repo)
    workspace = Path(atoll("path", "x", cwd=repo).stdout.strip())
    (workspace / "work.txt").write_text("work\n")
    atoll("rm", "x", "--force", cwd=repo)
    done = at_once(*(["recover", "x"] for _ in range(10)))
    assert len([one for one in done if one.code == 0]) == 1
    assert [one for one in done if one.code != 0 and not one.is_clean] == []
    assert (workspace / "work.txt").read_text() == "work\n"
    assert find_leftovers(atoll_home, repo, living=["x"]) == []


@pytest.mark.slow
def test_runs_in_one_capsule_have_numbers_of_their_own(at_once, atoll, ask, atoll_home, repo):
    atoll("new", "x", cwd=repo)
    command = ["run", "x", "--json", "--", "sh", "-c", "echo $ATOLL_CAPSULE"]
    done = at_once(*([command] * SOME))
    assert [one for one in done if one.code != 0] == []
    runs = [json.loads(one.stdout)["data"] for one in done]
    assert sorted(run["number"] for run in runs) == list(range(1, SOME + 1))
    assert {run["stdout"] for run in runs} == {"x\n"}
    assert {run["outcome"]["exit_code"] for run in runs} == {0}
    assert len(ask("show", "x")["runs"]) == SOME
    assert find_leftovers(atoll_home, repo, living=["x"]) == []


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["ls", "new"])
def test_first_use_of_a_home(at_once, ask, atoll_home, repo, verb):
    """Who comes first makes the database; the others wait for it."""
    assert not atoll_home.exists()
    commands = [["ls"] if verb == "ls" else ["new", f"c{number}"] for number in range(SOME)]
    done = at_once(*commands)
    assert [one for one in done if one.code != 0] == []
    names = [] if verb == "ls" else [f"c{number}" for number in range(SOME)]
    assert sorted(capsule["name"] for capsule in ask("ls")) == sorted(names)
    if verb == "new":
        assert find_leftovers(atoll_home, repo, living=names) == []


def test_two_views_of_one_home_in_one_process(atoll, ask, atoll_home, repo):
    """What one of them commits outlives the visit of another process.

    Closing any descriptor of a file drops all locks that the process holds on it; SQLite would
    then let whoever leaves last take the write-ahead log along.
    """
    first = library.open_project(repo)
    second = library.open_project(repo)
    assert ask("ls") == []
    first.new("x")
    assert [capsule["name"] for capsule in ask("ls")] == ["x"]
    assert [capsule.name for capsule in second.capsules()] == ["x"]
    second.capsule("x").remove()
    assert ask("ls") == []
    assert find_leftovers(atoll_home, repo) == []


@pytest.mark.slow
@pytest.mark.parametrize("force", [(), ("--force",)], ids=["plain", "force"])
def test_removal_races_runs(at_once, atoll, ask, atoll_home, repo, force):
    """A run gets its capsule or a clear no; nothing of it outlives the capsule."""
    for turn in range(3):
        atoll("new", "x", cwd=repo)
        done = at_once(
            *([["run", "x", "--", "sh", "-c", "setsid sleep 0.3 & echo here; sleep 0.2"]] * 4),
            ["rm", "x", *force],
            *([["run", "x", "-d", "--", "sleep", "0.3"]] * 2),
        )
        removal = done[4]
        assert removal.code == 0 or (removal.is_clean and not force), (turn, removal)
        for one in [*done[:4], *done[5:]]:
            # 137 and 143: it had begun, and the removal ended it.
            assert one.code in (0, 137, 143) or one.is_clean, (turn, one)
            assert "bug" not in one.stderr, (turn, one)
        if ask("ls"):
            for run in ask("ls")[0]["runs"]:
                atoll("wait", "x", str(run["number"]), cwd=repo, check=False)
            atoll("rm", "x", cwd=repo)
        assert ask("ls") == []
        assert left_processes(atoll_home) == [], turn
        assert find_leftovers(atoll_home, repo) == [], turn


def test_foreground_run_hears_that_its_capsule_is_removed(atoll, repo, wait_for, ask):
    atoll("new", "x", cwd=repo)
    argv = [sys.executable, "-m", "atoll", "run", "x", "--", "sh", "-c", "touch begun; sleep 1000"]
    workspace = Path(atoll("path", "x", cwd=repo).stdout.strip())
    with subprocess.Popen(
        argv, cwd=repo, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as client:
        try:
            wait_for((workspace / "begun").exists, timeout_s=30, what="the run")
            atoll("rm", "x", "--force", cwd=repo)
            _, said = client.communicate(timeout=30)
        finally:
            client.kill()
    assert client.returncode in (137, 143)
    assert "bug" not in said
    assert ask("ls") == []


@pytest.mark.slow
def test_listing_while_others_come_and_go(at_once, atoll, ask, atoll_home, repo):
    """`ls` never fails and never shows what cannot be."""
    stop = threading.Event()
    problems: list[str] = []

    def watch() -> None:
        while not stop.is_set():
            done = atoll("ls", "--json", cwd=repo, check=False)
            if done.returncode != 0:
                problems.append(done.stdout + done.stderr)
                return
            capsules = json.loads(done.stdout)["data"]
            ports = [port for capsule in capsules for port in capsule["ports"].values()]
            states = {capsule["state"] for capsule in capsules}
            if len(set(ports)) != len(ports) or not states <= {"creating", "ready", "removing"}:
                problems.append(done.stdout)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        names = [f"c{number}" for number in range(10)]
        for _ in range(2):
            made = at_once(*(["new", name] for name in names))
            assert [done for done in made if done.code != 0] == []
            ran = at_once(*(["run", name, "--", "true"] for name in names))
            assert [done for done in ran if done.code != 0] == []
            removed = at_once(*(["rm", name] for name in names))
            assert [done for done in removed if done.code != 0] == []
    finally:
        stop.set()
        watcher.join()
    assert problems == []
    assert ask("ls") == []
    assert find_leftovers(atoll_home, repo) == []


@pytest.mark.slow
def test_collection_while_others_come_and_go(at_once, ask, atoll_home, repo):
    """`gc` does not touch what another command is working on."""
    names = [f"c{number}" for number in range(10)]
    for _ in range(2):
        done = at_once(*(command for name in names for command in (["new", name], ["gc"])))
        assert [one for one in done if one.code != 0] == []
        done = at_once(
            *(command for name in names for command in (["run", name, "--", "true"], ["gc"]))
        )
        assert [one for one in done if one.code != 0] == []
        done = at_once(*(command for name in names for command in (["rm", name], ["gc"])))
        assert [one for one in done if one.code != 0] == []
    assert ask("ls") == []
    assert find_leftovers(atoll_home, repo) == []
