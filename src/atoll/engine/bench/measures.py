"""What is measured of the engine: each group yields rows, on one project whose base is warm.

A sample begins only when nothing of the former one is going on in the background.
"""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers.pool import Pool
from atoll.engine.bench import peers
from atoll.engine.bench.peers import measured, timed
from atoll.engine.bench.place import await_rest, settle_disk
from atoll.engine.bench.projects import Generated
from atoll.engine.bench.table import Aim, Row, at_most, at_most_times, times_faster
from atoll.engine.capsules import Capsule
from atoll.engine.projects import CapsuleSpec, Project
from atoll.host import git
from atoll.host.process import run
from atoll.host.programs import find_program
from atoll.host.tree import manifests
from atoll.model.errors import AtollError, DriverError
from atoll.model.names import numbered
from atoll.model.plan import WorkspacePlan

SPEC = CapsuleSpec(level="clone", network="open")
FIRST = "first clone of all, which freezes the base"
MANY = 100
CHANGES = (1, 100, 10_000)
_FEW = 5
_REFRESHES = 2
"""Of each kind: after six deltas a part is copied whole again, which is another thing."""
_READ_BY_ALL = (".gitignore", ".gitattributes")
"""Tracked files that git reads for its rules, in any checkout."""
_SLOW_CHECKOUT, _SLOW_COPY = 100_000, 20_000
"""From so many files on it takes long: measured once, and with `--quick` not at all."""
Peer = Callable[[Generated, Path], float]
_WRITER = (
    "mkdir -p changed && cd changed && i=0 && "
    "while [ $i -lt $1 ]; do echo $2 > f$i; i=$((i+1)); done"
)


class Clones(NamedTuple):
    """What it took, sample by sample."""

    new: list[float]
    first_run: list[float]
    second_run: list[float]
    removal: list[float]

    @property
    def whole(self) -> list[float]:
        return [new + run for new, run in zip(self.new, self.first_run, strict=True)]


class Subject:
    """One generated project, open in a throw-away home, and what was measured of it so far."""

    def __init__(
        self, project: Project, generated: Generated, place: Path, *, repeat: int, quick: bool
    ) -> None:
        self.project = project
        self.generated = generated
        self.place = place
        self.repeat = repeat
        self.quick = quick
        self.floor: tuple[float, ...] = ()
        self.lowest: tuple[float, ...] = ()
        """The floor with vfork."""
        self.few = min(repeat, _FEW)
        self.frozen: tuple[float, ...] = ()
        """What the first freeze took."""
        self.skipped: list[str] = []
        self._made = 0

    @property
    def size(self) -> str:
        return self.generated.shape.name

    @property
    def is_whole(self) -> bool:
        """Not a scaled-down one, of which most aims say nothing."""
        return self.size in ("S", "M", "L")

    @property
    def pool(self) -> Pool:
        return Pool(self.project.session.pool(self.project.record.id))

    @cached_property
    def plan(self) -> WorkspacePlan:
        return self.project.plan("probe", SPEC).workspace

    def make(self) -> Capsule:
        self._made += 1
        name = f"c{self._made}"
        return self.project.make([self.project.plan(name, SPEC)])[0]

    def remove(self, capsule: Capsule) -> None:
        capsule.remove(force=True)
        self.rest()

    def rest(self) -> None:
        await_rest(self.project.session)

    def skip(self, what: str) -> None:
        self.skipped.append(f"{self.size}: {what}")

    @cached_property
    def clones(self) -> Clones:
        found = Clones([], [], [], [])
        self._clone(Clones([], [], [], []))
        # The machine may get busier meanwhile: half of the floor is measured before, half after.
        self._measure_floor()
        for _ in range(self.repeat):
            self._clone(found)
        self._measure_floor()
        return found

    def _clone(self, found: Clones) -> None:
        took_s, capsule = measured(self.make)
        found.new.append(took_s)
        found.first_run.append(timed(_require_good, capsule))
        found.second_run.append(timed(_require_good, capsule))
        found.removal.append(timed(capsule.remove))
        self.rest()

    def _measure_floor(self) -> None:
        if self.plan.driver != "overlay":
            return
        base = self.project.warm(thorough=False)
        count = max(1, self.repeat // 2)
        # The first one reads directories of the base that are not cached yet.
        forked, spawned = peers.floor(self.pool, base.layers, self.plan.way, self.place, count + 1)
        self.floor += tuple(forked[1:])
        self.lowest += tuple(spawned[1:])


def _require_good(capsule: Capsule) -> None:
    result = capsule.run(["true"])
    if not result.outcome.good:
        raise DriverError(f"`true` failed in `{capsule.name}`: {result.outcome}")


def clone(subject: Subject) -> Iterator[Row]:
    """A capsule from a warm engine, with durable state and its first command."""
    clones = subject.clones
    floor = subject.floor
    rows, stored = _durable_rows(subject)
    both = tuple(sample + statistics.median(rows) for sample in floor)
    bare = "bare unshare + overlay + fork + exec"
    whole = tuple(clones.whole)
    size = subject.size
    if not floor:
        subject.skip(f"the floor: driver `{subject.plan.driver}` mounts no overlay")
    else:
        yield Row(size, bare, floor, "the same with vfork", subject.lowest)
    yield Row(size, "clone, durable", tuple(clones.new), bare, floor, at_most_times(3))
    yield Row(size, "first command", tuple(clones.first_run), bare, floor)
    yield Row(size, "clone + first command", whole, bare, floor)
    yield Row(size, "clone + first command", whole, f"{bare} + 2 durable rows", both)
    yield Row(size, "clone + first command, in all", whole, aim=at_most(0.025))
    yield Row(size, "second command", tuple(clones.second_run), bare, floor)
    yield Row(size, "2 rows in the store", stored, "2 x append + fdatasync", rows)


def _durable_rows(subject: Subject) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Bare ones and the store's, in turns: a disk is busy by the moment."""
    store = subject.project.session.store
    bare, stored = [], []

    def write() -> None:
        # Not by forgetting one, which also makes a backup.
        store.set_trusted("/bench", "0")
        store.set_trusted("/bench", "1")

    with peers.durable_rows(subject.place) as append:
        for _ in range(subject.repeat):
            bare.append(timed(append))
            stored.append(timed(write))
    store.forget_trust("/bench")
    return tuple(bare), tuple(stored)


def removal(subject: Subject) -> Iterator[Row]:
    """Until the user gets the prompt back; disk space is reclaimed later."""
    yield Row(
        subject.size, "visible removal", tuple(subject.clones.removal), aim=at_most(0.020)
    )  # fmt: skip
    yield Row(subject.size, "removal that stores a file", tuple(_stored_removals(subject)))


def _remove_stored(capsule: Capsule) -> None:
    capsule.remove(force=True)


def _stored_removals(subject: Subject) -> Iterator[float]:
    """Of capsules with one new file, as `rm --force` does it."""
    for _ in range(subject.repeat):
        capsule = subject.make()
        capsule.run(["sh", "-c", "echo new >stored-by-the-benchmark"])
        yield timed(_remove_stored, capsule)
        subject.rest()


def many(subject: Subject) -> Iterator[Row]:
    """A hundred at once."""
    count = MANY if subject.is_whole else 5
    project, size = subject.project, subject.size
    settle_disk(subject.place)
    before = _disk_bytes(subject)
    names = numbered("many", count)
    took, made = measured(lambda: project.make(project.plan_many(names, SPEC)))
    disk = _disk_bytes(subject) - before
    yield Row(size, f"{count} clones at once", (took,), aim=at_most(0.5))
    yield Row(size, f"disk of {count} clones", (disk,), aim=at_most(10e6, "B"), unit="B")
    removed = tuple(timed(capsule.remove) for capsule in made)
    yield Row(size, f"removal of {count}, all", (sum(removed),))
    yield Row(size, f"removal of {count}, each", removed)
    subject.rest()


def _disk_bytes(subject: Subject) -> int:
    """What the capsules take: their layers, their directories, the state; not what is frozen."""
    home, pool = subject.project.session.home, subject.pool
    own = [pool.layers / name for name in pool.all() if pool.find(name) is None]
    places = [*own, home / "projects", home / "locks"]
    state = sum(path.stat().st_blocks * 512 for path in home.glob("state.db*"))
    return state + sum(manifests.usage(place).bytes for place in places if place.is_dir())


def snapshot(subject: Subject) -> Iterator[Row]:
    """Of a capsule in which nothing runs; whatever has changed."""
    for count in CHANGES if subject.is_whole else CHANGES[:2]:
        capsule = subject.make()
        taken, rolled = [], []
        for number in range(subject.few):
            _change(capsule, count, number)
            taken.append(timed(capsule.snapshot, "bench"))
            subject.rest()
            _change(capsule, count, number + subject.few)
            rolled.append(timed(capsule.rollback))
            subject.rest()
        files = f"after {count:,} changed files"
        yield Row(subject.size, f"snapshot {files}", tuple(taken), aim=at_most(0.030))
        yield Row(subject.size, f"rollback {files}", tuple(rolled), aim=at_most(0.030))
        subject.remove(capsule)


def _change(capsule: Capsule, count: int, text: int) -> None:
    result = capsule.run(["sh", "-c", _WRITER, "sh", str(count), str(text)])
    if not result.outcome.good:
        raise DriverError(f"files cannot be written in `{capsule.name}`: {result.stderr!r}")


def status(subject: Subject) -> Iterator[Row]:
    """Git's own time, inside against outside."""
    root, size = str(subject.project.root), subject.size
    words = ("git", "status", "--porcelain")
    peers.clocked(words, cwd=root)
    warm, first, second = [], [], []
    for _ in range(subject.few):
        capsule = subject.make()
        inside = capsule.enclosure()
        warm.append(peers.clocked(words, cwd=root))
        first.append(peers.clocked(words, cwd=root, within=inside))
        second.append(peers.clocked(words, cwd=root, within=inside))
        subject.remove(capsule)
    outside = "warm git status outside"
    yield Row(size, "first git status", tuple(first), outside, tuple(warm), at_most_times(3))
    yield Row(size, "second git status", tuple(second), outside, tuple(warm))
    opened = _opened_by_status(subject)
    if opened is not None:
        yield Row(size, "tracked files that the first git status opens", (opened,),
                  aim=at_most(0, "files"), unit="files")  # fmt: skip


def _opened_by_status(subject: Subject) -> int | None:
    strace = find_program("strace")
    if strace is None:
        subject.skip("what git status opens: `strace` is not installed")
        return None
    root, trace = str(subject.project.root), subject.place / "trace"
    tracked = set(git.tracked(cwd=root))
    capsule = subject.make()
    argv = (strace, "-f", "-qq", "-e", "trace=open,openat", "-o", str(trace), "git", "status")
    try:
        run(argv, cwd=root, within=capsule.enclosure())
        text = trace.read_text(errors="replace")
    except AtollError as error:
        subject.skip(f"what git status opens: {error}")
        return None
    finally:
        trace.unlink(missing_ok=True)
        subject.remove(capsule)
    paths = (path.removeprefix(f"{root}/") for path in re.findall(r'"([^"]+)"', text))
    return sum(1 for p in paths if p in tracked and os.path.basename(p) not in _READ_BY_ALL)


def refresh(subject: Subject) -> Iterator[Row]:
    """One file of the dependencies changes, as an installer changes it."""
    if not subject.generated.shape.modules:
        subject.skip("refresh of the base: it has no dependencies")
        return
    modules = subject.project.root / "node_modules"
    changed = (modules / "package-0000" / "index.js", modules / ".package-lock.json")
    before = [path.read_bytes() for path in changed]
    walks: list[float] = []
    found: dict[str, list[float]] = {"by `warm`": [], "by `new`": []}
    try:
        for number in range(_REFRESHES):
            for what, samples in found.items():
                for path in changed:
                    path.write_bytes(f"// changed {what} {number}\n".encode())
                walks.append(peers.walk(subject.project.root))
                thorough = what == "by `warm`"
                samples.append(timed(subject.project.warm, thorough=thorough))
    finally:
        for path, content in zip(changed, before, strict=True):
            path.write_bytes(content)
    for what, samples in found.items():
        yield Row(subject.size, f"refresh of the base {what}", tuple(samples),
                  "plain walk of the tree", tuple(walks), at_most_times(2))  # fmt: skip


def shell(subject: Subject) -> Iterator[Row]:
    """From the shell: what the interpreter's start adds."""
    home, root = subject.project.session.home, subject.project.root
    starts, new, first = [], [], []
    for number in range(subject.few + 1):
        name = f"shell-{number}"
        starts.append(peers.interpreter())
        new.append(peers.shell(home, root, "new", name, "--level", SPEC.level or ""))
        first.append(peers.shell(home, root, "run", name, "--", "true"))
        subject.remove(subject.project.capsule(name))
    # The first of each finds cold caches.
    del starts[0], new[0], first[0]
    engine = statistics.median(subject.clones.new)
    both = tuple(start + engine for start in starts)
    size = subject.size
    yield Row(size, "`atoll new` from the shell", tuple(new), "python -I -c pass + engine", both)
    whole = tuple(a + b for a, b in zip(new, first, strict=True))
    yield Row(size, "`atoll new`, then `atoll run`", whole, aim=at_most(0.150))


def others(subject: Subject) -> Iterator[Row]:
    """What others do for the same. Last, since it leaves the disk busy."""
    generated, place, size = subject.generated, subject.place, subject.size
    rows: list[tuple[str, Peer, Aim | None, int]] = [
        ("git worktree add", peers.worktree, None, _SLOW_CHECKOUT),
        ("cp -a of everything", peers.copy, None, _SLOW_COPY),
    ]
    if generated.shape.ignored:
        aim = times_faster(500) if size == "M" else None
        what = "git worktree add + cp -a of what it lacks"
        rows.insert(1, (what, peers.worktree_and_copy, aim, _SLOW_COPY))
    for what, peer, aim, slow in rows:
        is_slow = generated.shape.files >= slow
        if is_slow and subject.quick:
            subject.skip(f"{what}: slow, and `--quick` was asked for")
            continue
        samples = tuple(peer(generated, place) for _ in range(1 if is_slow else subject.few))
        clones = tuple(subject.clones.whole)
        yield Row(size, "clone + first command", clones, what, samples, aim)
        if peer is peers.copy:
            yield Row(size, FIRST, subject.frozen, what, samples)
