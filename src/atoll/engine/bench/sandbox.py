"""What walls cost: a command behind them, against bare bwrap and the other ways to have some."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from atoll.engine.bench import peers
from atoll.engine.bench.peers import timed
from atoll.engine.bench.place import open_for, throwaway
from atoll.engine.bench.projects import SHAPES, generate
from atoll.engine.bench.table import BenchReport, Row, at_most_times, times_faster
from atoll.engine.bench.workspace import (
    BenchOptions,
    OnProgress,
    describe,
    machine_of,
    require_parent,
)
from atoll.engine.capsules import Capsule
from atoll.engine.projects import CapsuleSpec, Project, open_project
from atoll.host.process import run
from atoll.host.programs import find_program
from atoll.keeper.bubblewrap import BubblewrapLauncher
from atoll.model.enclosure import Bwrap
from atoll.model.errors import DriverError

_READER = (
    "import os, time\n"
    "found = [os.path.join(d, f) for d, _, names in os.walk('.') for f in names][:400]\n"
    "for path in found: open(path, 'rb').read()\n"
    "started = time.perf_counter()\n"
    "for _ in range(5):\n"
    "    for path in found: open(path, 'rb').read()\n"
    "print((time.perf_counter() - started) / len(found) / 5)\n"
)
_PEERS: dict[str, tuple[str, ...]] = {
    "srt": ("srt", "-c", "true"),
    "podman run --network none": ("podman", "run", "--rm", "--network", "none", "{image}", "true"),
    "docker run --network none": ("docker", "run", "--rm", "--network", "none", "{image}", "true"),
    "sandlock": ("sandlock", "run", "--", "true"),
}


def measure(order: BenchOptions, on_progress: OnProgress) -> BenchReport:
    """A small project, one capsule at level `sandbox`, and as many samples as ordered."""
    parent = require_parent(order)
    load_before = os.getloadavg()
    shape = SHAPES["S"].scaled(order.scale)
    skipped: list[str] = []
    with ExitStack() as stack:
        place = stack.enter_context(throwaway(parent))
        on_progress(f"making a project of {shape.files:,} files")
        root = generate(shape, place / "project").root
        project = open_project(root, home=place / "home", warn=on_progress)
        stack.enter_context(open_for(project))
        plan = project.plan("walled", CapsuleSpec(level="sandbox"))
        capsule = project.make([plan])[0]
        rows = [*_commands(capsule, order), *_files(capsule, root, order)]
        on_progress("measuring from the shell, with peers where they are installed")
        rows += _from_the_shell(project, capsule, place, order, skipped)
        capsule.remove(force=True)
        return BenchReport(
            machine=machine_of(parent, plan.workspace.driver, load_before),
            projects=(describe(shape),),
            rows=tuple(rows),
            skipped=tuple(skipped),
        )


def _commands(capsule: Capsule, order: BenchOptions) -> Iterator[Row]:
    first = timed(_true, capsule)
    ours, bare, plain = [], [], []
    start_bare = _bare(capsule)
    for _ in range(order.repeat):
        # In turns: the machine may get busier meanwhile.
        ours.append(timed(_true, capsule))
        bare.append(timed(start_bare))
        plain.append(timed(run, ("true",)))
    name = "bwrap with the same flags"
    yield Row("", "first command, which builds the room", (first,))
    yield Row(
        "", "a command in a running capsule", tuple(ours), name, tuple(bare), at_most_times(3)
    )
    yield Row("", name, tuple(bare), "a plain process", tuple(plain))


def _true(capsule: Capsule) -> None:
    result = capsule.run(["true"])
    if not result.outcome.good:
        raise DriverError(f"`true` ended with {result.outcome}")


def _bare(capsule: Capsule) -> Callable[[], None]:
    """bwrap by itself, around the host's own root, with the flags and the filter of a run."""
    walls = capsule.enclosure().walls
    if not isinstance(walls, Bwrap):
        raise DriverError("this capsule is not sandboxed by bwrap")
    options = tuple("/" if option == walls.root else option for option in walls.options)
    bare = BubblewrapLauncher(walls._replace(options=options))

    def start() -> None:
        words, fds = bare.words(["true"], {}, "/")
        try:
            run(words, keep_fds=fds, env={})
        finally:
            for fd in fds:
                os.close(fd)

    return start


def _files(capsule: Capsule, root: Path, order: BenchOptions) -> Iterator[Row]:
    inside, outside = [], []
    reader = (sys.executable, "-I", "-S", "-c", _READER)
    for _ in range(max(1, order.repeat // 4)):
        inside.append(float(capsule.run(["python3", "-c", _READER]).stdout))
        outside.append(float(run(reader, cwd=str(root)).text))
    yield Row("", "open and read one small file inside", tuple(inside), "outside", tuple(outside),
              at_most_times(1.5))  # fmt: skip


def _from_the_shell(
    project: Project, capsule: Capsule, place: Path, order: BenchOptions, skipped: list[str]
) -> Iterator[Row]:
    count = max(1, order.repeat // 4)
    words = ("run", capsule.name, "--", "true")
    ours = tuple(
        peers.shell(place / "home", Path(project.record.root), *words) for _ in range(count)
    )
    yield Row("", "`atoll run` from the shell", ours)
    for name, argv in _PEERS.items():
        found = _find_peer(name, argv, skipped)
        if found is not None:
            theirs = tuple(timed(run, found) for _ in range(count))
            aim = times_faster(3) if name != "sandlock" else None
            yield Row("", "`atoll run` from the shell", ours, name, theirs, aim)


def _find_peer(name: str, argv: tuple[str, ...], skipped: list[str]) -> tuple[str, ...] | None:
    """The command if it works here; otherwise the reason is noted."""
    if find_program(argv[0]) is None:
        skipped.append(f"{name}: not installed")
        return None
    if "{image}" in argv:
        listed = run((argv[0], "images", "--quiet"), allowed=range(256))
        if listed.code != 0 or not listed.text.strip():
            skipped.append(f"{name}: no service, or no image here")
            return None
        argv = tuple(listed.text.split()[0] if word == "{image}" else word for word in argv)
    tried = run(argv, allowed=range(256))
    if tried.code != 0:
        skipped.append(f"{name}: {os.fsdecode(tried.stderr).strip()[:200] or 'it failed'}")
        return None
    return argv
