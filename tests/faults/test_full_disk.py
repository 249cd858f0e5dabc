"""The disk is full at any moment: a clear error, nothing lost, and all goes on when there is room.

Project and home share a small filesystem in a file. Before a verb a ballast file takes all of it
but a little; how little decides how far the verb gets.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from atoll.testing.disks import filled
from atoll.testing.remains import runs_of, timeless

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

SIZE = 40 << 20
LARGE = 6 << 20
"""Of the files that do not fit, also not into the reserve that some verbs release."""
SPACE = re.compile("no space|is full|disk I/O error|couldn't write", re.IGNORECASE)
"""What an error says of a disk that is full; some of it in the words of SQLite and git."""
WRITE = f"head -c {LARGE} /dev/urandom >"


@dataclass(frozen=True)
class Scenario:
    """A verb that needs room, what there is before it, and what must hold afterwards.

    `rooms` are the kilobytes that are left: too few for the store, for the next step, for the end.
    """

    argv: tuple[str, ...]
    rooms: tuple[int, ...]
    prepare: Callable[[Any], Any]
    judge: Callable[[Any, Any], None]


def cold(clones: Any) -> Any:
    """A project whose ignored file does not fit."""
    (clones.repo / "build" / "large").write_bytes(os.urandom(LARGE))
    clones.know()
    return None


def judge_new(clones: Any, _: Any) -> None:
    if "x" not in clones.check("new"):
        clones.atoll("new", "x")
    clones.sh("cmp build/large build/large && git fsck")
    assert clones.portrait()["status"][1].count("?") == 0


def used(clones: Any) -> Any:
    clones.atoll("new", "x")
    clones.sh(clones.WORK)
    return clones.portrait()


def judge_used(clones: Any, before: Any) -> None:
    clones.check("used")
    clones.require(before)


def judge_new_beside(clones: Any, before: Any) -> None:
    judge_used(clones, before)
    if "y" not in clones.names():
        clones.atoll("new", "y")
    clones.sh("git status", "y")


def judge_run(clones: Any, before: Any) -> None:
    clones.sh("rm -f large")
    judge_used(clones, before)


def large(clones: Any) -> Any:
    used(clones)
    clones.sh(f"{WRITE} large")
    return clones.portrait()


def busy(clones: Any) -> Any:
    large(clones)
    clones.atoll("run", "x", "-d", "--", "sleep", "1000")
    return clones.portrait()


def judge_snapshot(clones: Any, before: Any) -> None:
    if runs_of(clones.home):
        assert clones.states() <= {"S", "R", "D"}
        clones.atoll("stop", "x")
    judge_used(clones, before)
    clones.atoll("snapshot", "x")
    clones.sh("rm -f large app.py")
    clones.atoll("rollback", "x")
    clones.require(before)


def kept(clones: Any) -> Any:
    before = large(clones)
    clones.atoll("snapshot", "x")
    return before


def judge_rollback(clones: Any, before: Any) -> None:
    """To the state that it is in: both ends are the same."""
    judge_used(clones, before)
    clones.atoll("rollback", "x", "1")
    clones.require(before)


def judge_fork(clones: Any, before: Any) -> None:
    judge_used(clones, before)
    if "y" not in clones.names():
        clones.atoll("fork", "x", "y")
    assert clones.portrait("y")["workspace"]["large"] == before["workspace"]["large"]


def judge_export(clones: Any, before: Any) -> None:
    judge_used(clones, before)
    clones.atoll("export", "x", "--all")
    assert "large" in clones.git("ls-tree", "--name-only", "atoll/x").split()


def judge_removal(clones: Any, before: Any) -> None:
    """The work is in the capsule or in a recovery point, whole."""
    if "x" in clones.names():
        judge_used(clones, before)
        clones.atoll("rm", "x", "--force")
    clones.check("removed")
    [point] = clones.points()
    clones.atoll("recover", point)
    found, wanted = (timeless(p)["workspace"] for p in (clones.portrait(), before))
    assert found["large"] == wanted["large"]
    assert found["new dir/tool"] == wanted["new dir/tool"]


FILL = f"{WRITE} large || exit 1"
SCENARIOS = {
    "new-cold": Scenario(("new", "x"), (24, 300, 600), cold, judge_new),
    "new": Scenario(("new", "y"), (120,), used, judge_new_beside),
    "run": Scenario(("run", "x", "--", "sh", "-c", FILL), (60, 600), used, judge_run),
    "snapshot": Scenario(("snapshot", "x"), (60,), large, judge_snapshot),
    "snapshot-busy": Scenario(("snapshot", "x"), (600,), busy, judge_snapshot),
    "rollback": Scenario(("rollback", "x"), (60,), kept, judge_rollback),
    "fork": Scenario(("fork", "x", "y"), (120,), large, judge_fork),
    "export": Scenario(("export", "x", "--all"), (600,), large, judge_export),
    "rm": Scenario(("rm", "x", "--force"), (60, 600), large, judge_removal),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_disk_is_full(name: str, clones_on_disk: Callable[[int], Any]) -> None:
    scenario = SCENARIOS[name]
    codes = []
    for room in scenario.rooms:
        with clones_on_disk(SIZE) as clones:
            before = scenario.prepare(clones)
            with filled(clones.repo.parent, room_bytes=room << 10):
                done = clones.try_atoll(*scenario.argv)
            codes.append(done.code)
            require_clear(clones, name, done)
            scenario.judge(clones, before)
            clones.clear()
    assert any(codes), "there was always room enough"


def require_clear(clones: Any, name: str, done: Any) -> None:
    """It succeeded, or reports what is full."""
    if done.code == 0 or (name == "run" and done.code == 1):
        return
    assert done.code in (3, 5), done
    assert SPACE.search(done.told), done
    assert str(clones.repo.parent) in done.told, done
    assert "Traceback" not in done.told, done
    assert "bug" not in done.told, done


@pytest.mark.parametrize("room", [0, 60])
def test_running_capsule_can_be_paused(room: int, clones_on_disk: Callable[[int], Any]) -> None:
    """It is either held and marked as paused, or neither."""
    with clones_on_disk(SIZE) as clones:
        busy(clones)
        with filled(clones.repo.parent, room_bytes=room << 10):
            paused = clones.try_atoll("pause", "x")
            assert clones.states() <= ({"t", "T"} if paused.code == 0 else {"S", "R", "D"})
            require_clear(clones, "pause", paused)
            if paused.code == 0:
                require_clear(clones, "resume", clones.try_atoll("resume", "x"))
            require_clear(clones, "stop", clones.try_atoll("stop", "x"))
        clones.atoll("resume", "x")
        clones.atoll("stop", "x")
        clones.check("stopped")
        clones.clear()
