"""kill -9 of whoever carries a race on, at every step: `race resume` finishes it, and nothing is
done twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import atoll
from atoll.testing.faults import (
    KILLED,
    find_leftovers,
    kill_at,
    processes_of,
    steps_of,
)
from atoll.testing.remains import runs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SEEDS = 3
ITERATIONS = 6
AGENT = """\
echo "$ATOLL_CAPSULE" >> file; sleep 0.3
echo '{"type": "done"}'
"""
MADE = ("new.leased", "new.workspace", "new.ready", "run.leased", "run.prepared", "run.launched")
QUICK = ("race.made", "race.launched")
KEPT = ("export.announced", "export.moved")


class RaceWorld:
    """A project, and a race in it that is killed and carried on."""

    def __init__(self, home: Path, repo: Path, git: Callable[..., str]) -> None:
        self.home, self.repo, self._git = home, repo, git

    def atoll(self, *args: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "atoll", *args],
            cwd=self.repo, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == code, (args, done.stdout, done.stderr)
        return done.stdout

    def candidates(self) -> list[dict[str, Any]]:
        shown = json.loads(self.atoll("race", "resume", "r", "--json"))["data"]
        assert shown["state"] == "finished"
        found: list[dict[str, Any]] = shown["candidates"]
        return found

    def judge(self, point: str) -> None:
        """Each candidate has done its task once, in one capsule and one run."""
        for one in self.candidates():
            name = one["name"]
            assert (one["state"], one["reason"], one["attempts"]) == ("done", "", 1), (point, one)
            assert one["passed"], (point, one)
            assert self._git("show", f"{one['commit']}:file", cwd=self.repo) == f"{name}\n", point
            kept = self._git("rev-parse", f"atoll/{name}", cwd=self.repo).strip()
            assert kept == one["commit"], point
            runs = json.loads(self.atoll("show", name, "--json"))["data"]["runs"]
            # Atoll's own git, which a killed command was waiting for, is not its task.
            own = [run for run in runs if "git" not in " ".join(run["argv"])]
            begun = [run for run in own if run["outcome"]["reason"] != "lost"]
            assert len(begun) == 1, (point, runs)
        assert runs_of(self.home) == [], point
        capsules = json.loads(self.atoll("ls", "--json"))["data"]
        assert len(capsules) == len(self.candidates()), point

    def clear(self, point: str) -> None:
        self.atoll("race", "rm", "r", "--force")
        for found in json.loads(self.atoll("recover", "--json"))["data"]:
            self.atoll("recover", found["id"], "--drop")
        self.atoll("gc")
        assert find_leftovers(self.home, self.repo) == [], point
        assert self._git("for-each-ref", "refs/atoll/races", cwd=self.repo) == "", point


@pytest.fixture
def race_world(
    atoll_home: Path, repo: Path, git: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[RaceWorld]:
    monkeypatch.setenv("ATOLL_LEVEL", "sandbox")
    yield RaceWorld(atoll_home, repo, git)
    for pid in processes_of(atoll_home):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


OPTIONS = ("race", "--name", "r", "--check", "test -s file", "--max", "2")
COMMAND = (*OPTIONS, "-n", "2", "--", "sh", "-c", "echo $ATOLL_CAPSULE >> file; sleep 0.3")


@pytest.mark.parametrize(
    "point",
    # A capsule and a run that were killed in the making are tried at each of their steps elsewhere.
    [*steps_of("race"), *(pytest.param(s, marks=pytest.mark.soak) for s in (*MADE, *KEPT))],
)
def test_race_killed_at_step(race_world: RaceWorld, point: str) -> None:
    done = kill_at(point, COMMAND, cwd=race_world.repo)
    assert done.code == KILLED, (point, done.stderr.decode())
    race_world.judge(point)
    race_world.clear(point)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(step, marks=() if step in QUICK else pytest.mark.soak)
        for step in (*steps_of("race"), *MADE)
    ],
)
def test_race_of_agents_killed_at_step(race_world: RaceWorld, tmp_path: Path, point: str) -> None:
    script = tmp_path / "agent.sh"
    script.write_text(AGENT)
    argv = (*OPTIONS, "--agents", f"script:{script}:2", "do it")
    done = kill_at(point, argv, cwd=race_world.repo)
    assert done.code == KILLED, (point, done.stderr.decode())
    race_world.judge(point)
    race_world.clear(point)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEEDS))
def test_race_killed_again_and_again(race_world: RaceWorld, seed: int) -> None:
    """At random moments, and each `resume` too."""
    chosen = random.Random(seed)
    argv: tuple[str, ...] = COMMAND
    for _ in range(ITERATIONS):
        kill_at(f"time:{chosen.uniform(0.2, 2.0):.2f}", argv, cwd=race_world.repo)
        if race_exists(race_world):
            argv = ("race", "resume", "r")
    if not race_exists(race_world):
        race_world.atoll(*COMMAND)
    race_world.judge(f"seed {seed}")
    race_world.clear(f"seed {seed}")


def race_exists(world: RaceWorld) -> bool:
    opened = atoll.open_project(world.repo)
    found = bool(opened.races.all())
    opened.session.store.close()
    return found
