"""`atoll bench workspace`: one run over projects of several sizes, and what came of it."""

from __future__ import annotations

import os
import platform
import pwd
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from atoll.engine.bench import measures
from atoll.engine.bench.changes import change
from atoll.engine.bench.measures import FIRST, SPEC, Subject
from atoll.engine.bench.place import open_for, require_room, settle_disk, throwaway
from atoll.engine.bench.projects import SHAPES, Generated, Shape, generate, reuse
from atoll.engine.bench.table import BenchReport, Machine, Row, at_most_times, render_value
from atoll.engine.projects import open_project
from atoll.engine.state.session import home_path
from atoll.host import files, git
from atoll.model.errors import StateError

SIZES = tuple(SHAPES)
GROUPS: dict[str, Callable[[Subject], Iterator[Row]]] = {
    "clone": measures.clone,
    "removal": measures.removal,
    "many": measures.many,
    "snapshot": measures.snapshot,
    "status": measures.status,
    "shell": measures.shell,
    "change": change,
    "refresh": measures.refresh,
    "peers": measures.others,
}
"""In the order in which they are measured: what leaves caches or the disk changed comes late."""
WHAT = tuple(GROUPS)
_SPARE_BYTES = 512 << 20
_COPIES = 2
"""The project and its frozen base; peers make one more copy, after another."""

OnProgress = Callable[[str], None]


class BenchOptions(NamedTuple):
    """What was asked for."""

    sizes: tuple[str, ...]
    only: tuple[str, ...] = WHAT
    repeat: int = 20
    scale: float = 1.0
    quick: bool = False
    place: Path | None = None
    """Where the throw-away place is made; None means: in Atoll's home."""
    keep: Path | None = None
    """Where generated projects stay for the next time."""

    def shapes(self) -> list[Shape]:
        return [SHAPES[size].scaled(self.scale) for size in SHAPES if size in self.sizes]


class _Measured(NamedTuple):
    size: str
    rows: list[Row]
    clones: tuple[float, ...]
    driver: str
    project: str
    skipped: list[str]


def measure(order: BenchOptions, on_progress: OnProgress) -> BenchReport:
    """Carries the whole order out. Raises PrerequisiteError when there is no room for it."""
    parent = require_parent(order)
    load_before = os.getloadavg()
    found = [_measure_size(order, shape, parent, on_progress) for shape in order.shapes()]
    rows = [row for one in found for row in one.rows]
    if "clone" in order.only:
        rows += _growth(found)
    machine = machine_of(parent, found[0].driver, load_before)
    return BenchReport(
        machine=machine,
        projects=tuple(one.project for one in found),
        rows=tuple(rows),
        skipped=tuple(text for one in found for text in one.skipped),
    )


def require_parent(order: BenchOptions) -> Path:
    parent = order.place.absolute() if order.place is not None else home_path(os.environ)
    if order.place is None:
        files.require_own_directory(parent)
    elif not parent.is_dir():
        raise StateError(f"there is no directory `{parent}`", hint=f"mkdir -p '{parent}'")
    copies = _COPIES if order.quick or not {"peers"} & set(order.only) else _COPIES + 1
    largest = max(order.shapes(), key=lambda shape: shape.size_bytes)
    require_room(
        parent, copies * largest.size_bytes + _SPARE_BYTES, copies * largest.files * 3 // 2
    )
    return parent


def _measure_size(
    order: BenchOptions, shape: Shape, parent: Path, on_progress: OnProgress
) -> _Measured:
    with ExitStack() as stack:
        place = stack.enter_context(throwaway(parent))
        on_progress(f"{shape.name}: making a project of {shape.files:,} files")
        generated = _generated(order, shape, place)
        project = open_project(generated.root, home=place / "home", warn=on_progress)
        stack.enter_context(open_for(project))
        subject = Subject(project, generated, place, repeat=order.repeat, quick=order.quick)
        driver = f"{subject.plan.driver} {subject.plan.way}".strip()
        on_progress(f"{shape.name}: freezing its base with driver `{driver}`")
        started = time.perf_counter()
        project.make([project.plan("first", SPEC)])[0].remove()
        frozen = time.perf_counter() - started
        settle_disk(place)
        subject.frozen = (frozen,)
        rows = [Row(shape.name, FIRST, subject.frozen)]
        for name, group in GROUPS.items():
            if name in order.only:
                on_progress(f"{shape.name}: measuring {name}")
                rows += group(subject)
        return _Measured(
            size=shape.name,
            rows=rows,
            clones=tuple(subject.clones.whole) if "clone" in order.only else (),
            driver=driver,
            project=describe(shape),
            skipped=subject.skipped,
        )


def _generated(order: BenchOptions, shape: Shape, place: Path) -> Generated:
    if order.keep is None:
        return generate(shape, place / "project")
    final = order.keep.absolute() / shape.name
    found = reuse(shape, final)
    if found is not None:
        return found
    files.make_private_directory(final.parent)
    with _made_aside(final) as aside:
        generate(shape, aside)
        aside.rename(final)
    return Generated(shape, final)


@contextmanager
def _made_aside(final: Path) -> Iterator[Path]:
    """A kept project has its name only when it is whole."""
    aside = final.with_name(f".{final.name}.new")
    files.remove_tree(aside, within=final.parent)
    try:
        yield aside
    finally:
        files.remove_tree(aside, within=final.parent)


def _growth(found: list[_Measured]) -> Iterator[Row]:
    """How the time of a clone grows with the project."""
    smallest = found[0]
    for one in found[1:]:
        if not one.size.startswith(smallest.size[0]):
            against = f"the same for {smallest.size}"
            yield Row(one.size, "clone + first command", one.clones, against, smallest.clones,
                      at_most_times(2))  # fmt: skip


def describe(shape: Shape) -> str:
    ignored = shape.files - shape.tracked
    return (
        f"{shape.name}: {shape.files:,} files ({shape.tracked:,} tracked, {ignored:,} ignored), "
        f"{render_value(shape.size_bytes, 'B')}"
    )


def machine_of(parent: Path, driver: str, load_before: tuple[float, ...]) -> Machine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_bytes=memory,
        kernel=f"{platform.system()} {platform.release()}",
        filesystem=_filesystem(parent),
        user="root" if os.geteuid() == 0 else f"user {_user()}",
        driver=driver,
        git=".".join(map(str, git.version())),
        python=platform.python_version(),
        load_before=load_before,
        load_after=os.getloadavg(),
    )


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Hardware"):
            return value.strip()
    return platform.machine()


def _filesystem(place: Path) -> str:
    """Kind and device of what is mounted there: the last line that holds the path wins."""
    real, found = os.path.realpath(place), ("", "unknown")
    for line in Path("/proc/self/mounts").read_text(errors="replace").splitlines():
        device, point, kind = line.split(" ")[:3]
        if (real == point or real.startswith(f"{point.rstrip('/')}/")) and len(point) >= len(
            found[0]
        ):
            found = (point, f"{kind} on {device} at {point}")
    return found[1]
