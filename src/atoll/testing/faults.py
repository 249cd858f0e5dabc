"""Kills the program at a chosen point and finds what that left; production code has no hook for it.

A point is

- a step of `engine.session.STEPS`: `new.leased`;
- the moment before or after the N-th tool that Atoll itself runs: `command:3`, `after-command:3`;
- the moment before or after the N-th time that it makes, renames, removes or opens for writing
  anything in a filesystem by itself: `act:7`, `after-act:7`;
- a time in seconds from the start of the work: `time:0.25`, which takes the whole process group
  along, tools in the middle of their work included.

The child that dies is a real process that runs the real command line; only the trap is added.
"""

from __future__ import annotations

import builtins
import io
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from atoll.drivers import registry
from atoll.drivers.layers import probes
from atoll.engine.state.session import STEPS, Session
from atoll.host import git, process
from atoll.host.intake import quarantine, transfer
from atoll.host.process import Completed
from atoll.keeper import process_tree

KILLED = -signal.SIGKILL
_ANY_CODE = range(-64, 256)
_RECLAIMED_S = 30.0
HOME_ENTRIES = {
    "backups",
    "checks",
    "promotions",
    "damaged",
    "reserve",
    *("state.db", "state.db-wal", "state.db-shm", "locks", "projects", "recovered", "points"),
    *("pools", "probes.json", "router-port", "registries.json", "daemon", "standins", "lookout"),
}


def steps_of(*verbs: str) -> list[str]:
    """Every step of these verbs as a point."""
    return [f"{verb}.{step}" for verb in verbs for step in STEPS[verb]]


def kill_at(point: str, argv: Sequence[str], *, cwd: Path) -> Completed:
    """Runs `atoll ARGV` in a child that dies at `point`: its code is KILLED if it got there."""
    program = "import sys; from atoll.testing.faults import run_and_kill; "
    program += "run_and_kill(sys.argv[1], sys.argv[2:])"
    return process.run(
        [sys.executable, "-c", program, point, *argv],
        cwd=str(cwd),
        env=dict(os.environ),
        allowed=_ANY_CODE,
    )


def run_and_kill(point: str, argv: Sequence[str]) -> None:
    """Becomes `atoll ARGV`, with a trap at `point`. Meant for a process of its own."""
    kind, _, value = point.partition(":")
    if kind == "time":
        os.setsid()
        timer = threading.Timer(float(value), os.killpg, (os.getpgrp(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
    elif kind in ("command", "after-command"):
        _trap_commands(_Trap(int(value), after=kind == "after-command"))
    elif kind in ("act", "after-act"):
        _trap_acts(_Trap(int(value), after=kind == "after-act"))
    elif point in steps_of(*STEPS):
        _trap_step(point)
    else:
        raise ValueError(f"there is no point `{point}`")
    sys.argv = ["atoll", *argv]
    runpy.run_module("atoll", run_name="__main__", alter_sys=True)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _trap_step(point: str) -> None:
    reach = Session.reach

    def trapped(session: Session, step: str, subject: str) -> None:
        reach(session, step, subject)
        if step == point:
            _die()

    Session.reach = trapped  # type: ignore[method-assign,assignment]


class _Trap:
    """Dies at the N-th call of any of the functions that it was put around."""

    def __init__(self, number: int, *, after: bool) -> None:
        self._number, self._after = number, after
        self._count = 0
        self._turn = threading.Lock()

    def around(
        self, function: Callable[..., Any], *, counts: Callable[..., bool] = lambda *_, **__: True
    ) -> Callable[..., Any]:
        @wraps(function)
        def trapped(*args: Any, **kwargs: Any) -> Any:
            if not counts(*args, **kwargs):
                return function(*args, **kwargs)
            with self._turn:
                self._count += 1
                is_mine = self._count == self._number
            if is_mine and not self._after:
                _die()
            try:
                return function(*args, **kwargs)
            finally:
                if is_mine:
                    _die()

        return trapped


def _trap_commands(trap: _Trap) -> None:
    overlay = sys.modules[type(registry.layered_driver("overlay")).__module__]
    # Each of these holds a name of its own for the spawner.
    for module in (git, probes, overlay):
        vars(module)["run"] = trap.around(process.run)
    for module in (quarantine, transfer):
        vars(module)["stream"] = trap.around(process.stream)


def _trap_acts(trap: _Trap) -> None:
    for name in ("mkdir", "rename", "replace", "rmdir", "unlink", "link", "symlink"):
        setattr(os, name, trap.around(getattr(os, name)))
    os.open = trap.around(os.open, counts=lambda _path, flags, *_, **__: flags & os.O_CREAT)
    opened = trap.around(io.open, counts=_writes)
    io.open = builtins.open = opened


def _writes(_file: object, mode: str = "r", *_: object, **__: object) -> bool:
    return not set("wax").isdisjoint(mode)


def find_leftovers(
    home: Path, checkout: Path, *, living: Collection[str] = (), tokens: Collection[str] = ()
) -> list[str]:
    """What is there beyond the capsules `living` and the runs with these `tokens`, in words.

    What was thrown away may take its time, but not for ever.
    """
    busy = (home / "trash", home / "locks" / "upkeep")
    process.wait_until(lambda: not any(map(Path.exists, busy)), timeout_s=_RECLAIMED_S)
    return [
        *_stray_files(home, living=set(living), tokens=set(tokens)),
        *_stray_git(home, checkout, living=set(living)),
        *(f"process {pid}" for pid in ([] if tokens else left_processes(home))),
    ]


def _stray_files(home: Path, *, living: set[str], tokens: set[str]) -> list[str]:
    problems = [f"in home: {path.name}" for path in home.iterdir() if path.name not in HOME_ENTRIES]
    directories = {path.name for path in home.glob("projects/*/*")}
    problems += [f"directory of `{name}`" for name in sorted(directories ^ living)]
    locks = {path.name for path in home.glob("locks/*")}
    problems += [f"lock {name}" for name in sorted(locks - {f"run-{token}" for token in tokens})]
    return problems


def _stray_git(home: Path, checkout: Path, *, living: set[str]) -> list[str]:
    cwd = str(checkout)
    repository = Path(git.find_checkout(cwd).repository)
    listed = git.git("worktree", "list", "--porcelain", "-z", cwd=cwd).text.split("\0")
    places = [field.removeprefix("worktree ") for field in listed if field.startswith("worktree ")]
    ours = sorted(Path(place).name for place in places if Path(place).is_relative_to(home))
    problems = [] if ours == sorted(living) else [f"git lists the worktrees {ours}"]
    records = sorted(path.name for path in (repository / "worktrees").glob("*"))
    if len(records) != len(places) - 1:
        problems.append(f"git has the worktree records {records}")
    branches = {ref for ref, _ in git.refs_below("refs/heads/atoll", cwd=cwd)}
    strange = branches ^ {f"refs/heads/atoll/{name}" for name in living}
    problems += [f"branch {ref}" for ref in sorted(strange)]
    return [*problems, *damage_of_repository(cwd, repository)]


def damage_of_repository(cwd: str, repository: Path) -> list[str]:
    """What a killed git left, and what git itself finds wrong."""
    problems = [f"git lock {path}" for path in sorted(repository.rglob("*.lock"))]
    fsck = git.git("fsck", "--full", "--no-dangling", "--no-progress", cwd=cwd, allowed=_ANY_CODE)
    if fsck.code != 0:
        problems.append(f"git fsck: {(fsck.stdout + fsck.stderr).decode(errors='replace')}")
    return problems


def left_processes(home: Path) -> list[int]:
    """Every process of a run of this home, and every keeper that does not exit after its run."""
    left, _ = _processes_of(home)
    process.wait_until(lambda: not _processes_of(home)[1], timeout_s=_RECLAIMED_S)
    return sorted({*left, *processes_of(home)})


def processes_of(home: Path) -> list[int]:
    """Every process of a run of this home, and every keeper of one."""
    runs, keepers = _processes_of(home)
    return sorted({*runs, *keepers})


def _processes_of(home: Path) -> tuple[set[int], set[int]]:
    """The processes of runs, and their keepers."""
    place = os.fsencode(home) + b"/"
    runs: set[int] = set()
    keepers: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
            arguments = (entry / "cmdline").read_bytes()
        except OSError:
            # It has ended, or belongs to another user.
            continue
        if b"ATOLL_RUN=" in environment and place in environment:
            runs.add(int(entry.name))
        if b"atoll.keeper.forkserver" in arguments and place in arguments:
            # This process's own fork server goes with it.
            seen = process_tree.find_process(int(entry.name))
            if seen is not None and seen.ppid != os.getpid():
                keepers.add(int(entry.name))
    return runs, keepers
