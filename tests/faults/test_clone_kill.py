"""kill -9 at every step, tool and act of a capsule with layers: as before or as after.

Every step is tried with the default settings (level `sandbox`, a daemon), and in a soak at level
`clone`, too.

Each scenario brings a project to the moment before one verb, lets the verb die at one point, and
looks at everything: what the capsules hold, what the owner's repository holds, what is left. One
world serves many points: whatever a crash did to it would show at a later one, too.
"""

from __future__ import annotations

import itertools
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from atoll.engine.state.session import STEPS
from atoll.testing.faults import steps_of
from atoll.testing.remains import keepers_of, runs_of, timeless

if TYPE_CHECKING:
    from collections.abc import Callable

    from faults.conftest import Clones

pytestmark = pytest.mark.slow

DAEMON = "echo $$ > pid; setsid sleep 1000 & exec sleep 1000"
SETUP = '[capsule]\nsetup = ["echo made > build/stamp"]\n'


@dataclass(frozen=True)
class Scenario:
    """A verb, the world that it is run in, and what must hold when it was killed."""

    argv: tuple[str, ...]
    steps: tuple[str, ...]
    prepare: Callable[[Clones], Any]
    judge: Callable[[Clones, Any, str], None]


def work(clones: Clones) -> None:
    """A capsule `x` with work of every kind, which no command has seen yet."""
    if "x" not in clones.names():
        clones.atoll("new", "x")
        clones.sh(clones.WORK)


# new


def new_one(clones: Clones) -> Any:
    """What a new capsule holds; found out once."""
    if clones.known is None:
        clones.atoll("new", "x")
        clones.known = timeless(clones.portrait())
        clones.atoll("rm", "x")
    return clones.known


def cold(clones: Clones) -> Any:
    """Nothing is frozen yet."""
    expected = new_one(clones)
    clones.stop_daemon()
    clones.wait_for(lambda: not keepers_of(clones.home), what="the end of all work on the home")
    shutil.rmtree(clones.home)
    for pin in clones.git("for-each-ref", "--format=%(refname)", "refs/atoll").split():
        clones.git("update-ref", "-d", pin)
    return expected


def warm(clones: Clones) -> Any:
    """All is frozen, and there is a command to set a capsule up with."""
    if not (clones.repo / "atoll.toml").exists():
        (clones.repo / "atoll.toml").write_text(SETUP)
        clones.atoll("trust")
        clones.know()
    expected = new_one(clones)
    assert "build/stamp" in expected["workspace"]
    return expected


def judge_new(clones: Clones, expected: Any, point: str) -> None:
    """There is none, or it is ready and has all; and if there is none it can be made."""
    if "x" not in clones.check(point):
        clones.atoll("new", "x")
    assert timeless(clones.portrait()) == expected, point
    clones.atoll("rm", "x")


def changed(clones: Clones) -> dict[str, bytes]:
    """The owner has gone on: the next capsule needs deltas over the layers that there are."""
    clones.atoll("warm")
    number = str(len(clones.git("log", "--format=%h").split()))
    (clones.repo / "app.py").write_text(number)
    (clones.repo / "build" / f"n{number}").write_text(number)
    (clones.repo / "build" / "carried").write_text(number)
    clones.git("commit", "--quiet", "--all", "--message", number)
    clones.know()
    build = clones.repo / "build"
    files = [clones.repo / "app.py", *(path for path in build.iterdir() if path.is_file())]
    return {str(path.relative_to(clones.repo)): path.read_bytes() for path in files}


def judge_delta(clones: Clones, expected: dict[str, bytes], point: str) -> None:
    if "x" not in clones.check(point):
        clones.atoll("new", "x")
    for path, content in expected.items():
        assert clones.sh(f"cat {path}") == content.decode(), (point, path)
    assert clones.sh("git status --porcelain") == "", point
    clones.atoll("rm", "x")


# run


def busy(clones: Clones) -> Any:
    work(clones)
    return clones.portrait()


def judge_run(clones: Clones, before: Any, point: str) -> None:
    """The capsule is as it was, and of the run there is the truth."""
    clones.atoll("stop", "x")
    assert runs_of(clones.home) == [], point
    clones.require(before, point=point)
    assert clones.check(point) == {"x"}
    for run in clones.ask("show", "x")["runs"]:
        assert run["state"] == "ended", (point, run)
        assert run["outcome"]["reason"] in ("exited", "lost", "stopped", "hangup"), (point, run)


COMMIT = "date +%N > stamp && git add stamp && git commit -qm stamp"


def judge_commit(clones: Clones, _: Any, point: str) -> None:
    """A branch that the owner sees is whole, and the next run brings out what was left."""
    clones.atoll("stop", "x")
    assert clones.check(point) == {"x"}
    assert clones.sh("git status --porcelain stamp") == "", point
    clones.atoll("run", "x", "--", "true")
    assert clones.tip() == clones.sh("git rev-parse HEAD").strip(), point


# export


def uncommitted(clones: Clones) -> Any:
    work(clones)
    clones.sh("date +%N > stamp")
    return clones.portrait(), clones.tip()


def judge_export(clones: Clones, before: Any, point: str) -> None:
    painted, tip = before
    assert clones.check(point) == {"x"}
    clones.require(painted, point=point)
    stamp = clones.sh("cat stamp")
    if clones.tip() != tip:
        assert clones.git("show", "atoll/x:stamp") == stamp, point
    # Something else comes out next, so that the branch has to move once more.
    painted, _ = uncommitted(clones)
    clones.atoll("export", "x", "--all")
    assert clones.git("show", "atoll/x:stamp") == clones.sh("cat stamp"), point
    clones.require(painted, point=point)


# snapshot, rollback, fork


def judge_snapshot(clones: Clones, before: Any, point: str) -> None:
    painted, count = before
    assert clones.check(point) == {"x"}
    clones.require(painted, point=point)
    found = clones.snapshots()
    assert len(found) in (count, count + 1), point
    clones.sh("echo later > later")
    clones.atoll("snapshot", "x")
    clones.atoll("rollback", "x", str(found[-1] if found else clones.snapshots()[0]))
    if len(found) > count:
        clones.require(painted, point=point)


def quiet(clones: Clones) -> Any:
    work(clones)
    return clones.portrait(), len(clones.snapshots())


def judge_busy_snapshot(clones: Clones, before: Any, point: str) -> None:
    """Whatever was held still for a moment goes on."""
    painted, count = before
    assert runs_of(clones.home), point
    clones.wait_for(lambda: clones.states() <= {"R", "S", "D"}, what=f"{point}: the thaw")
    clones.require(painted, point=point)
    found = clones.snapshots()
    assert len(found) in (count, count + 1), point
    clones.atoll("stop", "x")
    assert clones.check(point) == {"x"}
    if len(found) > count:
        clones.atoll("rollback", "x", str(found[-1]))
        clones.require(painted, point=point)


def running(clones: Clones) -> Any:
    work(clones)
    if not runs_of(clones.home):
        clones.atoll("run", "x", "-d", "--", "sh", "-c", DAEMON)
        clones.wait_for(lambda: clones.sh("cat pid 2>/dev/null; true"), what="the run")
    return quiet(clones)


def two_states(clones: Clones) -> Any:
    work(clones)
    target = clones.portrait()
    clones.atoll("snapshot", "x")
    clones.sh("rm -rf lib; date +%N > stamp; date > $HOME/private; rm -r $TMPDIR/scratch")
    return clones.portrait(), target, len(clones.snapshots())


def judge_rollback(clones: Clones, before: Any, point: str) -> None:
    left, target, count = before
    assert clones.check(point) == {"x"}
    found = clones.snapshots()
    clones.require(left if len(found) == count else target, point=point)
    assert len(found) in (count, count + 1), point
    if len(found) > count:
        clones.atoll("rollback", "x", str(found[-1]))
        clones.require(left, point=point)
    clones.atoll("rollback", "x", str(count))
    clones.require(target, point=point)


def judge_fork(clones: Clones, before: Any, point: str) -> None:
    painted, _ = before
    names = clones.check(point)
    clones.require(painted, point=point)
    if "y" not in names:
        clones.atoll("fork", "x", "y")
    assert like_a_fork(clones.portrait("y")) == like_a_fork(painted), point
    clones.atoll("rm", "y", "--force")
    clones.drop_points()


def like_a_fork(painted: Any) -> Any:
    """What is the same in a capsule and its fork: all but the name of the branch."""
    files = {n: e for n, e in painted["workspace"].items() if not n.startswith(".git/")}
    return [files, *(painted[part] for part in ("home", "tmp", "index", "status", "stash"))]


# rm, gc


def judge_removal(clones: Clones, before: Any, point: str) -> None:
    """The work is in the capsule or in a recovery point, whole."""
    painted, _ = before
    if "x" in clones.check(point):
        clones.require(painted, point=point)
        return
    found = clones.points()
    assert len(found) == 1, (point, found)
    clones.atoll("recover", found[0])
    again = clones.portrait()
    assert stored_by_git(again) == stored_by_git(painted), point
    # The next one has it from here: what was recovered once can be lost and recovered again.
    clones.drop_points()


def stored_by_git(painted: Any) -> Any:
    files = timeless(painted)["workspace"]
    kept = {n: e for n, e in files.items() if not n.startswith((".git", "build", "empty"))}
    status = [line for line in painted["status"][1].splitlines() if line[0] != "!"]
    return [kept, painted["index"], status]


def rubbish(clones: Clones) -> Any:
    """A capsule that stays, and a bit of everything that crashes can leave."""
    clones.atoll("new", "y")
    clones.sh("echo 1 > f", "y")
    clones.atoll("snapshot", "y")
    clones.sh("echo 2 > f", "y")
    assert clones.die("rollback.sealed", "rollback", "y")
    work(clones)
    changed(clones)
    assert clones.die("act:30", "warm")
    before = clones.portrait()
    assert clones.die("snapshot.recorded", "snapshot", "x")
    assert clones.die("rm.announced", "rm", "y", "--force")
    return before


def judge_gc(clones: Clones, before: Any, point: str) -> None:
    assert clones.check(point) == {"x"}
    clones.require(before, point=point)
    clones.drop_points()


NEW = ("new", "x")
COMMITTED = ("run", "x", "--", "sh", "-c", COMMIT)
SCENARIOS = {
    "cold": Scenario(NEW, tuple(steps_of("new")), cold, judge_new),
    "warm": Scenario(NEW, ("run.launched", "run.ended", "new.setup"), warm, judge_new),
    "delta": Scenario(NEW, ("new.frozen",), changed, judge_delta),
    "run": Scenario(("run", "x", "--", "sleep", "0.1"), tuple(steps_of("run")), busy, judge_run),
    "run-detached": Scenario(
        ("run", "x", "-d", "--", "sleep", "1000"), ("run.launched",), busy, judge_run
    ),
    "run-commit": Scenario(COMMITTED, ("run.ended", *steps_of("export")), busy, judge_commit),
    "export": Scenario(
        ("export", "x", "--all"), tuple(steps_of("export")), uncommitted, judge_export
    ),
    "snapshot": Scenario(("snapshot", "x"), tuple(steps_of("snapshot")), quiet, judge_snapshot),
    "snapshot-busy": Scenario(
        ("snapshot", "x"), tuple(steps_of("snapshot")), running, judge_busy_snapshot
    ),
    "rollback": Scenario(
        ("rollback", "x"), tuple(steps_of("rollback")), two_states, judge_rollback
    ),
    "fork": Scenario(("fork", "x", "y"), tuple(steps_of("fork")), quiet, judge_fork),
    "rm": Scenario(("rm", "x", "--force"), tuple(steps_of("rm")), quiet, judge_removal),
    "gc": Scenario(("gc",), ("rm.stopped", "rm.workspace"), rubbish, judge_gc),
}
INSIDE = {
    "cold": (20, 50, 8, 14, 80, 110, 17),
    "delta": (30, 60, 9, 14),
    "snapshot": (5, 10),
    "rollback": (10, 15),
    "rm": (15, 30),
}
"""Which tools and acts of a verb it is killed around, in turns as `test_killed_between_steps` has
them: a sample, in which every number of the first scenario lies in the making of some layer.
"""


@pytest.mark.parametrize(
    "clones", ["default", pytest.param("clone", marks=pytest.mark.soak)], indirect=True
)
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_every_step(clones: Clones, name: str) -> None:
    scenario = SCENARIOS[name]
    for point in scenario.steps:
        before = scenario.prepare(clones)
        assert clones.die(point, *scenario.argv), f"`{point}` was never reached"
        scenario.judge(clones, before, point)
    clones.clear()


@pytest.mark.soak
@pytest.mark.parametrize(("name", "numbers"), INSIDE.items())
def test_killed_between_steps(clones: Clones, name: str, numbers: tuple[int, ...]) -> None:
    """While layers are frozen, moved and let go: around single tools and acts."""
    scenario = SCENARIOS[name]
    reached = 0
    kinds = itertools.cycle(("act", "after-act", "command", "after-command"))
    for kind, number in zip(kinds, numbers, strict=False):
        point = f"{kind}:{number}"
        before = scenario.prepare(clones)
        reached += clones.die(point, *scenario.argv)
        scenario.judge(clones, before, point)
    # The last ones may lie beyond the end, when the work has become less.
    assert reached > len(numbers) / 2, "hardly any point was reached"
    clones.clear()


ELSEWHERE = {"check", "race", "promote", "undo"}
"""Verbs with fault tests of their own: `test_kill`, `test_race_kill`, `test_promotion_kill`."""


def test_every_step_is_tried() -> None:
    tried = {step for scenario in SCENARIOS.values() for step in scenario.steps}
    assert tried == set(steps_of(*(STEPS.keys() - ELSEWHERE)))
