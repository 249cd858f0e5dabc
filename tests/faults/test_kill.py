"""kill -9 at every step and around every tool: afterwards `ls` is true and `gc` leaves nothing.

Each scenario brings a fresh project to the moment before one verb, lets the verb die at one point,
and asks the next commands what is left. A point that the verb never reaches fails its test.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atoll.cli import app
from atoll.testing.faults import (
    KILLED,
    find_leftovers,
    kill_at,
    left_processes,
    processes_of,
    steps_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


DAEMON = "setsid sleep 1000 & exec sleep 1000"
SETUP = '[capsule]\nsetup = ["echo made > build-stamp; echo build-stamp >> .gitignore"]\n'
# After one is mostly as before the next.
KINDS = ["command", pytest.param("after-command", marks=pytest.mark.soak)]
SHARDS = 3
SEEDS = 3
ITERATIONS = 5


@dataclass(frozen=True)
class Snapshot:
    """All that a workspace holds, ignored files aside."""

    files: dict[str, tuple[str, bytes]]
    status: str
    head: str


class World:
    """One project in one Atoll home, and what can be asked of both."""

    def __init__(self, home: Path, repo: Path, git: Callable[..., str]) -> None:
        self.home, self.repo, self._git = home, repo, git
        self.tmp = repo.parent / "tmp"

    def atoll(self, *args: str, code: int = 0) -> str:
        """Runs a command line to its end, in this process: there are thousands of them.

        Only what is killed needs a process of its own.
        """
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                found = app.run([args[0], "--project", str(self.repo), *args[1:]])
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        said, told = (text.buffer.getvalue().decode() for text in (out, err))
        assert found == code, f"atoll {args} exited with {found}\n{said}{told}"
        return said

    def git(self, *args: str, cwd: Path | None = None) -> str:
        return self._git(*args, cwd=cwd or self.repo)

    def ask(self, *args: str) -> Any:
        return json.loads(self.atoll(*args, "--json"))["data"]

    def capsules(self) -> dict[str, Any]:
        return {capsule["name"]: capsule for capsule in self.ask("ls")}

    def points(self) -> list[str]:
        return [point["id"] for point in self.ask("recover")]

    def workspace(self, name: str = "x") -> Path:
        return next((self.home / "projects").glob(f"*/{name}/workspace/{name}"))

    def status(self, run: dict[str, Any]) -> dict[str, Any] | None:
        """What the keeper of a run has observed."""
        place = self.workspace(run["capsule"]).parents[1] / "runs" / str(run["number"])
        path = place / "status.json"
        return json.loads(path.read_text()) if path.exists() else None

    def has_begun(self, run: dict[str, Any]) -> bool:
        return self.status(run) is not None

    def die(self, point: str, *argv: str) -> bool:
        """Whether the verb got as far as `point`. One that did not must have done its job."""
        done = kill_at(point, argv, cwd=self.repo)
        assert done.code in (KILLED, 0), (point, done.stderr.decode())
        return done.code == KILLED

    def leftovers(self, living: dict[str, Any]) -> list[str]:
        tokens = [path.name.removeprefix("run-") for path in self.home.glob("locks/run-*")]
        running = any(capsule["runs"] for capsule in living.values())
        found = find_leftovers(
            self.home, self.repo, living=living, tokens=tokens if running else ()
        )
        return [*found, *(f"temporary file {path}" for path in self.tmp.iterdir())]

    def check(self, point: str) -> dict[str, Any]:
        """`ls` is true, every capsule that it shows is usable, `gc` leaves nothing."""
        # Looked at before `ls`: what had begun by then must be shown as running.
        begun = {
            run["id"]: self.has_begun(run) for c in self.capsules().values() for run in c["runs"]
        }
        living = self.capsules()
        for name, capsule in living.items():
            assert capsule["state"] == "ready", (point, capsule)
            assert self.workspace(name).is_dir(), point
            for run in capsule["runs"]:
                assert processes_of(self.home), (point, run)
                assert run["state"] in ("starting", "running"), (point, run)
                assert run["state"] == "running" or not begun.get(run["id"]), (point, run)
            # The command is one that needs the workspace, the private home and the environment.
            self.atoll("run", name, "--", "sh", "-c", "git status >$HOME/s && test $PORT")
        ports = [port for capsule in living.values() for port in capsule["ports"].values()]
        assert len(set(ports)) == len(living), point
        self.atoll("gc")
        assert self.leftovers(living) == [], point
        return living

    def clear(self, point: str, *, drop: bool = True) -> None:
        """Removes everything, and makes sure that there is nothing more."""
        for name in self.capsules():
            self.atoll("rm", name, "--force")
        if drop:
            for found in self.points():
                self.atoll("recover", found, "--drop")
        assert self.leftovers({}) == [], point

    def snapshot(self, name: str = "x") -> Snapshot:
        place = self.workspace(name)
        files = {}
        for path in sorted(place.rglob("*")):
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode) or path == place / ".git":
                continue
            content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
            files[str(path.relative_to(place))] = (stat.filemode(mode), content)
        return Snapshot(
            files=files,
            status=self.git("status", "--porcelain=v2", "--untracked-files=all", cwd=place),
            head=self.git("rev-parse", "HEAD", cwd=place),
        )

    def work(self, name: str = "x") -> Snapshot:
        """Leaves work of every kind in a capsule."""
        place = self.workspace(name)
        (place / "committed.txt").write_text("committed\n")
        self.git("add", "--all", cwd=place)
        self.git("commit", "--quiet", "--message", "agent", cwd=place)
        (place / "app.py").write_text("staged\n")
        self.git("add", "app.py", cwd=place)
        (place / "app.py").write_text("staged, then changed\n")
        (place / "README.md").unlink()
        (place / "new dir").mkdir()
        (place / "new dir" / "untracked").write_bytes(b"\0\xff")
        (place / "new dir" / "tool").write_text("#!/bin/sh\n")
        (place / "new dir" / "tool").chmod(0o755)
        (place / "link").symlink_to("nowhere")
        return self.snapshot(name)

    def require_work(self, before: Snapshot, point: str) -> None:
        """It is in the capsule or in a recovery point, whole."""
        if "x" in self.capsules():
            assert self.snapshot() == before, point
            return
        found = self.points()
        assert len(found) == 1, (point, found)
        self.atoll("recover", found[0])
        assert self.snapshot() == before, point


@pytest.fixture
def world(
    atoll_home: Path, repo: Path, git: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    made = World(atoll_home, repo, git)
    made.tmp.mkdir()
    monkeypatch.setenv("TMPDIR", str(made.tmp))
    yield made
    # What a failed test has left must not outlive it.
    for pid in processes_of(atoll_home):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Scenario:
    """A verb, the world that it is run in, and what must hold when it was killed."""

    argv: tuple[str, ...]
    steps: tuple[str, ...]
    prepare: Callable[[World], Any]
    judge: Callable[[World, Any, str], None]


def trust_setup(world: World) -> None:
    if not (world.repo / "atoll.toml").exists():
        (world.repo / "atoll.toml").write_text(SETUP)
        world.atoll("trust")


def judge_new(world: World, _: Any, point: str) -> None:
    living = world.check(point)
    assert set(living) <= {"x"}, point
    if living:
        assert (world.workspace() / "build-stamp").read_text() == "made\n"


def make_capsule(world: World) -> None:
    world.atoll("new", "x")


def judge_run(world: World, _: Any, point: str) -> None:
    """The capsule stays, and of the run there is the truth: gone, or alive with its processes."""
    living = world.check(point)
    assert set(living) == {"x"}, point
    world.atoll("stop", "x")
    assert left_processes(world.home) == [], point
    for run in world.ask("show", "x")["runs"]:
        assert run["state"] == "ended", (point, run)
        assert run["outcome"]["reason"] in ("exited", "lost", "stopped", "hangup"), (point, run)


def make_busy_capsule(world: World) -> Snapshot:
    make_capsule(world)
    before = world.work()
    world.atoll("run", "x", "-d", "--", "sh", "-c", DAEMON)
    return before


def judge_forced_removal(world: World, before: Snapshot, point: str) -> None:
    living = world.check(point)
    if living:
        assert len(living["x"]["runs"]) == 1, point
    else:
        assert left_processes(world.home) == [], point
    world.require_work(before, point)


def judge_removal(world: World, _: Any, point: str) -> None:
    living = world.check(point)
    assert set(living) <= {"x"}, point
    assert world.points() == [], point


def store_work(world: World) -> Snapshot:
    make_capsule(world)
    before = world.work()
    world.atoll("rm", "x", "--force")
    return before


def judge_recovery(world: World, before: Snapshot, point: str) -> None:
    """The point outlives it; a capsule that is shown as ready holds all of the work."""
    living = world.check(point)
    assert len(world.points()) == 1, point
    if not living:
        world.atoll("recover", "x")
    assert world.snapshot() == before, point


def make_checked_capsule(world: World) -> None:
    (world.repo / "atoll.toml").write_text("[checks.sum]\nrun = 'test -f app.py'\n")
    world.atoll("trust")
    make_capsule(world)


def judge_check(world: World, _: Any, point: str) -> None:
    """The capsule of the check is gone; its result is stored whole, or it can be checked again."""
    assert set(world.check(point)) == {"x"}, point
    report = world.ask("check", "x")
    assert [one["status"] for one in report["checks"]] == ["passed"], point
    assert set(world.check(point)) == {"x"}, point


RUN_STEPS = tuple(steps_of("run"))
STARTING = tuple(step for step in RUN_STEPS if step not in ("run.ended", "run.recorded"))
SCENARIOS = {
    "new": Scenario(
        argv=("new", "x"),
        steps=(*steps_of("new"), *RUN_STEPS),
        prepare=trust_setup,
        judge=judge_new,
    ),
    "run": Scenario(
        argv=("run", "x", "--", "sh", "-c", "sleep 0.1"),
        steps=RUN_STEPS,
        prepare=make_capsule,
        judge=judge_run,
    ),
    "run-detached": Scenario(
        argv=("run", "x", "-d", "--", "sh", "-c", DAEMON),
        steps=STARTING,
        prepare=make_capsule,
        judge=judge_run,
    ),
    "rm-force": Scenario(
        argv=("rm", "x", "--force"),
        steps=tuple(steps_of("rm")),
        prepare=make_busy_capsule,
        judge=judge_forced_removal,
    ),
    "rm": Scenario(
        argv=("rm", "x"),
        steps=tuple(steps_of("rm")),
        prepare=make_capsule,
        judge=judge_removal,
    ),
    "check": Scenario(
        argv=("check", "x"),
        # Of the capsule in which it runs, and which is made and removed like any other.
        steps=(
            "new.leased",
            "new.ready",
            *RUN_STEPS,
            *steps_of("check"),
            "rm.announced",
            "rm.files",
        ),
        prepare=make_checked_capsule,
        judge=judge_check,
    ),
    "recover": Scenario(
        argv=("recover", "x"),
        steps=tuple(steps_of("new")),
        prepare=store_work,
        judge=judge_recovery,
    ),
}


@pytest.mark.parametrize(
    ("name", "point"),
    [
        pytest.param(
            name,
            step,
        )
        for name, scenario in SCENARIOS.items()
        for step in scenario.steps
    ],
)
def test_killed_at_step(world: World, name: str, point: str) -> None:
    scenario = SCENARIOS[name]
    before = scenario.prepare(world)
    assert world.die(point, *scenario.argv), f"`{point}` was never reached"
    scenario.judge(world, before, point)
    world.clear(point)


@pytest.mark.soak
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("kind", ["command", "after-command"])
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "recover"])
def test_killed_around_every_command(world: World, name: str, kind: str, shard: int) -> None:
    try_every_command(world, name, f"{kind}:", itertools.count(2 * shard + 1, 2 * SHARDS))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_recovery_killed_around_every_command(world: World, kind: str) -> None:
    try_every_command(world, "recover", f"{kind}:", itertools.count(1, 2))


def try_every_command(world: World, name: str, kind: str, numbers: Iterable[int]) -> None:
    """Before each odd tool and after each odd tool: once between any two of them."""
    scenario = SCENARIOS[name]
    number = 0
    for number in numbers:
        before = scenario.prepare(world)
        reached = world.die(f"{kind}{number}", *scenario.argv)
        scenario.judge(world, before, f"{kind}{number}")
        world.clear(f"{kind}{number}")
        if not reached:
            break
    # One question about the repository at the very least; the loop ended beyond the last one.
    assert number > 1, f"no command of `{name}` was ever reached"


@pytest.mark.parametrize("point", steps_of("rm"))
def test_clean_up_killed(world: World, point: str) -> None:
    """A crash, and then a crash of the command that puts it right."""
    trust_setup(world)
    assert world.die("new.isolation", "new", "x")
    assert world.die(point, "gc"), f"`{point}` was never reached"
    assert world.check(point) == {}
    world.clear(point)


@pytest.mark.parametrize("point", steps_of("rm")[1:])
def test_removal_killed_twice(world: World, point: str) -> None:
    before = make_busy_capsule(world)
    assert world.die("rm.announced", "rm", "x", "--force")
    assert world.die(point, "ls"), f"`{point}` was never reached"
    judge_forced_removal(world, before, point)
    world.clear(point)


@pytest.mark.soak
def test_foreground_run_without_its_client_ends_by_itself(
    world: World, wait_for: Callable[..., Any]
) -> None:
    """The command never began, so the keeper that waits for a client is all that has to go."""
    make_capsule(world)
    assert world.die("run.launched", "run", "x", "--", "touch", "started")
    wait_for(lambda: not processes_of(world.home), timeout_s=45, what="the end of the keeper")
    assert world.capsules()["x"]["runs"] == []
    [run] = world.ask("show", "x")["runs"]
    assert (run["state"], run["outcome"]["reason"]) == ("ended", "hangup")
    assert not (world.workspace() / "started").exists()


VICTIMS = {"keeper": ("keeper",), "guard": ("guard",), "both": ("keeper", "guard")}


def kill_at_once(status: dict[str, Any], victims: tuple[str, ...]) -> None:
    """Stopped first, so that neither can hear of the other's end."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for victim in victims:
            os.kill(status[victim]["pid"], number)


@pytest.mark.parametrize("who", VICTIMS)
def test_keeper_killed(world: World, wait_for: Callable[..., Any], who: str) -> None:
    make_capsule(world)
    world.atoll("run", "x", "-d", "--", "sh", "-c", DAEMON)
    [run] = world.capsules()["x"]["runs"]
    kill_at_once(wait_for(lambda: world.status(run), what="the run"), VICTIMS[who])
    wait_for(lambda: not world.capsules()["x"]["runs"], what="`ls` without the run")
    assert left_processes(world.home) == []
    [run] = world.ask("show", "x")["runs"]
    assert (run["state"], run["outcome"]["reason"]) == ("ended", "lost")
    world.check(who)
    world.clear(who)


@pytest.mark.parametrize("who", VICTIMS)
def test_keeper_killed_in_the_foreground(
    world: World, wait_for: Callable[..., Any], who: str
) -> None:
    """Whoever waits hears of it."""
    make_capsule(world)
    argv = [sys.executable, "-m", "atoll", "run", "x", "--", "sh", "-c", DAEMON]
    with subprocess.Popen(argv, cwd=world.repo, stdin=subprocess.DEVNULL) as client:
        try:
            [run] = wait_for(lambda: world.capsules()["x"]["runs"], what="the run")
            kill_at_once(wait_for(lambda: world.status(run), what="the keeper"), VICTIMS[who])
            assert client.wait(timeout=30) == 137
        finally:
            client.kill()
    assert left_processes(world.home) == []
    world.check(who)
    world.clear(who)


def truncate(record: Path, workspace: Path, state: str) -> None:
    """Leaves what `git worktree add` leaves when it is killed, undoing it from the end.

    It makes the record's directory, marks it as locked, names the workspace in `gitdir`, makes
    the workspace with its `.git`, then HEAD and commondir, checks out, and takes the mark away.
    """
    damages: dict[str, list[Callable[[], object]]] = {
        "still locked": [lambda: (record / "locked").write_text("initializing")],
        "half checked out": [(workspace / "app.py").unlink, (record / "index").unlink],
        "index locked": [(record / "index.lock").touch],
        "nothing checked out": [(record / "index.lock").unlink, lambda: empty(workspace)],
        "no commondir": [(record / "commondir").unlink],
        "no HEAD": [(record / "HEAD").unlink],
        "empty link": [lambda: (workspace / ".git").write_text("")],
        "no link": [(workspace / ".git").unlink],
        "no workspace": [workspace.rmdir],
        "empty gitdir": [lambda: (record / "gitdir").write_text("")],
        "no gitdir": [(record / "gitdir").unlink],
        "no lock": [lambda: shutil.rmtree(record), record.mkdir],
    }
    assert list(damages) == TRUNCATIONS
    for name, acts in damages.items():
        for act in acts:
            act()
        if name == state:
            return


def empty(workspace: Path) -> None:
    for entry in workspace.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != ".git":
            entry.unlink()


TRUNCATIONS = [
    "still locked",
    "half checked out",
    "index locked",
    "nothing checked out",
    "no commondir",
    "no HEAD",
    "empty link",
    "no link",
    "no workspace",
    "empty gitdir",
    "no gitdir",
    "no lock",
]


@pytest.mark.parametrize(
    "state",
    TRUNCATIONS,
)
def test_git_killed_inside_worktree_add(world: World, state: str) -> None:
    """Every state that git can leave is put right: no record, no branch, no file."""
    assert world.die("new.workspace", "new", "x")
    truncate(world.repo / ".git" / "worktrees" / "x", world.workspace(), state)
    assert world.check(state) == {}
    world.clear(state)


@pytest.mark.parametrize("state", TRUNCATIONS[1:7])
def test_half_a_checkout_is_no_work(world: World, state: str) -> None:
    """The capsule never was ready, so there is nothing in it that anybody made."""
    assert world.die("new.workspace", "new", "x")
    truncate(world.repo / ".git" / "worktrees" / "x", world.workspace(), state)
    assert world.check(state) == {}
    assert world.points() == []


def test_stale_lock_on_the_branch(world: World) -> None:
    """Left by a git that was killed while it wrote the branch: no other process uses it, so it is
    removed.
    """
    assert world.die("new.leased", "new", "x")
    stale = world.repo / ".git" / "refs" / "heads" / "atoll" / "x.lock"
    stale.parent.mkdir(parents=True, exist_ok=True)
    stale.touch()
    assert world.check("stale") == {}
    world.atoll("new", "x")


def test_stuck_removal_stops_no_other(world: World) -> None:
    """One capsule that cannot be removed yet is reported, and every other command continues."""
    make_capsule(world)
    world.atoll("new", "y")
    # A lock that some other git may hold right now: it is not Atoll's to break.
    stale = world.repo / ".git" / "packed-refs.lock"
    world.git("pack-refs", "--all")
    stale.touch()
    world.atoll("rm", "x", code=5)
    assert world.capsules()["x"]["state"] == "removing"
    world.atoll("run", "y", "--", "true")
    stale.unlink()
    assert set(world.check("stuck")) == {"y"}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEEDS))
def test_killed_at_any_time(world: World, seed: int) -> None:
    """The whole process group at once, tools in the middle of their work included."""
    chance = random.Random(seed)
    killed = 0
    trust_setup(world)
    for turn in range(ITERATIONS):
        delay = f"time:{chance.uniform(0.05, 0.5):.3f}"
        point = f"seed {seed}, turn {turn}, {delay}"
        killed += world.die(delay, "new", "x")
        if not world.check(point):
            # Half of a checkout may have been stored as work: too much is no loss.
            world.clear(point)
            world.atoll("new", "x")
        before = world.work()
        world.atoll("run", "x", "-d", "--", "sh", "-c", DAEMON)
        delay = f"time:{chance.uniform(0.05, 0.6):.3f}"
        killed += world.die(delay, "rm", "x", "--force")
        judge_forced_removal(world, before, f"{point}, then {delay}")
        world.clear(point)
    assert killed > 0, "no command was slow enough to be killed"
