"""Events of real capsules, followed from another process or recorded without any command."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import atoll
from atoll.engine.capsule import exports
from atoll.engine.run.runs import RunSpec
from atoll.model.state import RunState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from atoll.engine.projects import Project

FOLLOW = """
import sys, atoll
project = atoll.open_project(sys.argv[1])
print(flush=True)
for event in project.events(after=project.newest_event(), follow=True, timeout_s=100):
    print(event.kind, event.capsule, event.subject, event.payload.get("target"), flush=True)
    if event.kind == "capsule.removed":
        break
"""


@pytest.fixture
def project(repo: Path, atoll_home: Path) -> Iterator[Project]:
    opened = atoll.open_project(repo)
    yield opened
    for capsule in opened.capsules():
        capsule.remove(force=True)
    opened.session.store.close()


def test_life_of_a_capsule_is_followed_from_another_process(project: Project) -> None:
    argv = [sys.executable, "-c", FOLLOW, str(project.root)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        follower.stdout.readline()
        x = project.new("x", level="clone")
        x.run(["sh", "-c", "echo > new; exit 3"])
        x.snapshot("one")
        x.rollback()
        x.remove(force=True)
        lines = follower.stdout.read().splitlines()
    assert lines == [
        "capsule.creating x x None",
        "port.leased x web None",
        "capsule.ready x x None",
        "run.starting x 1 None",
        "run.running x 1 None",
        "run.ended x 1 None",
        "snapshot.taken x 1 None",
        "snapshot.taken x 2 1",
        "capsule.removing x x None",
        "capsule.removed x x None",
    ]


@pytest.mark.parametrize("level", ["none", "worktree", "clone", "sandbox"])
def test_end_of_a_background_run_is_recorded_when_it_ends(project: Project, level: str) -> None:
    x = project.new("x", level=level)
    x.start(RunSpec(argv=("sh", "-c", "exit 3"), background=True))
    # Reading events settles nothing.
    found = x.events(follow=True, timeout_s=60)
    ended = next(event for event in found if event.kind == "run.ended")
    assert (ended.subject, ended.payload["exit_code"]) == ("1", 3)
    [run] = project.session.store.runs(x.record)
    assert run.state is RunState.ENDED


def test_next_command_records_an_end_that_the_watcher_did_not(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "finish_when_over", lambda *_: None)
    x = project.new("x")
    run = x.start(RunSpec(argv=("true",), background=True))
    lock = project.session.run_lock(run.token)
    assert lock.acquire(wait=True)
    lock.release()
    assert [event.kind for event in x.events()][-1] == "run.running"
    again = atoll.open_project(project.root)
    assert [event.kind for event in again.capsule("x").events()][-1] == "run.ended"
    again.session.store.close()
