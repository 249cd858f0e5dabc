"""The isolation spectrum: what each level isolates, what it does not, what it costs.

A level is a pair of drivers. One that has none yet is refused: nothing ever runs unconfined under
the name of a wall.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from atoll.drivers import registry
from atoll.model.errors import IsolationError, SpecError
from atoll.model.state import Problem

DEFAULT = "sandbox"
LAYERS = "layers"
"""Stands for whichever driver with layers works best on this host."""


_LIMITS = {
    "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 4,
    "cpus": float(os.cpu_count() or 1),
    "pids": 4096,
    "files": 65_536,
    "disk": 50 << 30,
    "output": 1 << 30,
    "idle": 12 * 3600.0,
    "time": 24 * 3600.0,
}
"""Wide enough for any build, narrow enough that what runs wild ends before the machine does."""


class Level(NamedTuple):
    name: str
    workspace: str | None
    isolation: str | None
    isolates: str
    shares: str
    cost: str
    networks: tuple[str, ...] = ("open",)
    """What it can do about the network; the first one is what it does unless told otherwise."""
    own_network: bool = False
    """Whether every capsule may listen on any port; else ports are leases that it is told."""
    limits: dict[str, float] = {}  # noqa: RUF012 - a tuple's default, never changed
    """What its capsules may use unless told otherwise; empty for one that limits nothing."""

    @property
    def exists(self) -> bool:
        return self.workspace is not None


LEVELS = (
    Level(
        name="none",
        workspace="checkout",
        isolation="open",
        isolates="nothing; runs are tracked, their environment is scrubbed",
        shares="files, home, network, processes",
        cost="nothing",
    ),
    Level(
        name="worktree",
        workspace="worktree",
        isolation="process",
        isolates="tracked files, branch, HOME, TMPDIR, environment, ports by lease",
        shares="git refs and config, network, whatever the user may read",
        cost="a checkout: time and disk grow with the tracked files",
    ),
    Level(
        name="clone",
        workspace=LAYERS,
        isolation="namespace",
        isolates="all files at the project's own path, git, HOME, TMPDIR, ports by lease",
        shares="network, whatever the user may read",
        cost="milliseconds; the first one of a project copies its dependencies",
    ),
    Level(
        name="sandbox",
        workspace=LAYERS,
        isolation="sandbox",
        isolates="files, processes, network, kernel interfaces, limits",
        shares="the kernel",
        cost="milliseconds",
        networks=("allow", "none", "open"),
        own_network=True,
        limits=_LIMITS,
    ),
    Level(
        name="container",
        workspace=None,
        isolation=None,
        isolates="as sandbox, with an image of its own",
        shares="the kernel",
        cost="an image; tenths of a second",
    ),
    Level(
        name="vm",
        workspace=None,
        isolation=None,
        isolates="everything, with a kernel of its own",
        shares="the hardware",
        cost="memory; seconds",
    ),
)
_WEAKER = {"sandbox": "atoll doctor; atoll new NAME --level clone has no walls"}
NAMES = tuple(level.name for level in LEVELS)


def find_level(name: str) -> Level | None:
    return next((level for level in LEVELS if level.name == name), None)


def has_own_network(name: str) -> bool:
    level = find_level(name)
    return level is not None and level.own_network


def require_level(name: str, home: Path) -> Level:
    """The level, if it is known and can be built; one that does not exist yet is refused."""
    level = find_level(name)
    if level is None:
        import difflib  # noqa: PLC0415 - only for a mistake

        close = difflib.get_close_matches(name, NAMES, n=1)
        raise SpecError(
            f"there is no level `{name}`",
            hint=f"did you mean `{close[0]}`?" if close else f"one of {', '.join(NAMES)}",
        )
    if not level.exists:
        raise IsolationError(
            f"level `{name}` does not exist yet, and nothing is run unconfined under its name",
            hint=f"atoll new NAME --level {DEFAULT}",
        )
    if problems := find_problems(level, home):
        cures = [problem.cure for problem in problems if problem.cure]
        raise IsolationError(
            f"level `{name}` cannot be built here: "
            + "; ".join(problem.what for problem in problems),
            hint=" && ".join(cures) or _WEAKER.get(name, "atoll new NAME --level worktree"),
        )
    return level


def find_problems(level: Level, home: Path) -> list[Problem]:
    """What this host lacks for a level that exists."""
    if level.workspace is None or level.isolation is None:
        return [Problem(what="does not exist yet")]
    isolation = registry.isolation_driver(level.isolation).check(home)
    if level.workspace != LAYERS:
        return [*registry.workspace_driver(level.workspace).check(home), *isolation]
    problems = []
    for name in registry.LAYERED:
        found = registry.layered_driver(name).check(home)
        if not found:
            return isolation
        problems += found
    return [*problems, *isolation]


def choose_driver(level: Level, home: Path, wanted: str) -> str:
    """The workspace driver of a level: the one that was asked for, or the best that works."""
    if level.workspace != LAYERS:
        return str(level.workspace)
    if wanted == "auto":
        works = (n for n in registry.LAYERED if not registry.layered_driver(n).check(home))
        return next(works)
    if problems := registry.layered_driver(wanted).check(home):
        raise IsolationError("; ".join(problem.what for problem in problems), hint="atoll doctor")
    return wanted
