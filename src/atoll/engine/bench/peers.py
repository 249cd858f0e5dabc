"""What others would do for the same, timed on the same filesystem in the same run."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from atoll.drivers.layers import probes
from atoll.drivers.layers.build_view import overlay
from atoll.drivers.layers.pool import Pool
from atoll.engine.bench.projects import Generated
from atoll.host import files, git
from atoll.host.process import run
from atoll.host.programs import find_program, python_command
from atoll.model.enclosure import Enclosure, View, encode

_ROW = b"x" * 512
_CLOCK = (
    "import os, sys, time\n"
    "null = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]\n"
    "started = time.perf_counter()\n"
    "pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=null)\n"
    "status = os.waitpid(pid, 0)[1]\n"
    "took_s = time.perf_counter() - started\n"
    "os.write(1, repr(took_s).encode())\n"
    "sys.exit(status != 0)\n"
)

P = ParamSpec("P")
T = TypeVar("T")


def timed(action: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> float:
    """How many seconds a call takes."""
    return measured(action, *args, **kwargs)[0]


def measured(action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[float, T]:
    started = time.perf_counter()
    value = action(*args, **kwargs)
    return time.perf_counter() - started, value


def clocked(argv: tuple[str, ...], *, cwd: str, within: Enclosure | None = None) -> float:
    """How long a program takes by a clock that stands beside it: entering a view is not counted."""
    clock = (sys.executable, "-I", "-S", "-c", _CLOCK)
    return float(run((*clock, *argv), cwd=cwd, within=within).text)


def floor(
    pool: Pool, layers: tuple[str, ...], way: str, place: Path, count: int
) -> tuple[list[float], list[float]]:
    """The bare system calls over a frozen base; see `atoll.engine.bench.floor`."""
    scratch = place / "floor"
    scratch.mkdir()
    chosen = probes.overlay_mode(way)
    mount = overlay(chosen, layers, "", pool.state)
    view = View(user=chosen.user, pool=str(pool.layers), mounts=(mount,))
    task = {
        "count": count,
        "scratch": str(scratch),
        "program": find_program("true"),
        "view": encode(view),
    }
    try:
        argv = python_command("atoll.engine.bench.floor", site=False)
        answer = run(argv, stdin=json.dumps(task).encode())
        forked, spawned = json.loads(answer.stdout)
    finally:
        files.remove_tree(scratch, within=place)
    return forked, spawned


@contextmanager
def durable_rows(place: Path) -> Iterator[Callable[[], None]]:
    """Writes two records, each on the disk before it goes on: the least of crash safety."""
    path = place / "rows"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write() -> None:
        for _ in range(2):
            os.write(handle, _ROW)
            os.fdatasync(handle)

    try:
        write()
        yield write
    finally:
        os.close(handle)
        path.unlink()


def worktree(generated: Generated, place: Path) -> float:
    """`git worktree add`: tracked files only."""
    with _worktree(generated, place) as took_s:
        return took_s


def worktree_and_copy(generated: Generated, place: Path) -> float:
    """`git worktree add`, then `cp -a` of what git ignores: what most tools do today."""
    with filled_worktree(generated, place) as (took_s, _):
        return took_s


@contextmanager
def filled_worktree(generated: Generated, place: Path) -> Iterator[tuple[float, str]]:
    """The time that such a worktree takes, and its path."""
    sources = [str(generated.root / name) for name in generated.shape.ignored]
    path = str(place / "worktree")
    with _worktree(generated, place) as took_s:
        copy_s = timed(run, ("cp", "-a", "--", *sources, f"{path}/")) if sources else 0.0
        yield took_s + copy_s, path


@contextmanager
def _worktree(generated: Generated, place: Path) -> Iterator[float]:
    cwd, path = str(generated.root), place / "worktree"
    words = ("worktree", "add", "--quiet", "-b", "bench-worktree", str(path))
    try:
        yield timed(git.git, *words, cwd=cwd)
    finally:
        files.remove_tree(path, within=place)
        git.git("worktree", "prune", cwd=cwd)
        git.git("branch", "--quiet", "-D", "bench-worktree", cwd=cwd, allowed=(0, 1))


def copy(generated: Generated, place: Path) -> float:
    """`cp -a` of everything."""
    target = place / "copy"
    try:
        return timed(run, ("cp", "-a", "--", str(generated.root), str(target)))
    finally:
        files.remove_tree(target, within=place)


def walk(root: Path) -> float:
    """A plain walk: every directory listed, every entry looked at, nothing kept."""

    def go() -> None:
        waiting = [str(root)]
        while waiting:
            with os.scandir(waiting.pop()) as listing:
                for entry in listing:
                    entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)

    return timed(go)


def interpreter() -> float:
    """The start and the end of a bare interpreter."""
    return timed(run, (sys.executable, "-I", "-c", "pass"))


def shell(home: Path, root: Path, *words: str) -> float:
    """One `atoll` command as a shell runs it."""
    argv = python_command("atoll.__main__", "--quiet", "--project", str(root), *words)
    return timed(run, argv, env={"ATOLL_HOME": str(home)})
