"""The isolation spectrum: what each level isolates, what it does not, what it costs.

A level is a pair of drivers. A level without drivers is refused: nothing ever runs with less
isolation than requested.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from atoll.drivers import registry
from atoll.host import programs
from atoll.model.enclosure import SETTABLE_LIMITS, LimitKind
from atoll.model.errors import IsolationError, SpecError
from atoll.model.state import Problem

DEFAULT = "sandbox"
LAYERS = "layers"
"""Stands for the first driver of `registry.LAYERED` that works on this host."""
AUTO = "auto"
"""The setting that chooses this driver."""
MACHINE: dict[str, float] = {
    "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    "cpus": float(os.cpu_count() or 1),
}
"""What the machine has of what is limited by a share of it."""


def _default_limit(kind: LimitKind) -> float:
    if kind.default is not None:
        return kind.default
    value = MACHINE[kind.name] * kind.share
    return int(value) if kind.unit == "size" else value


class Level(NamedTuple):
    name: str
    workspace: str | None
    isolation: str | None
    isolates: str
    shares: str
    cost: str
    networks: tuple[str, ...] = ("open",)
    """The supported network modes; the first one is the default."""
    has_own_network: bool = False
    """Whether every capsule can listen on any port, and leaves its network only through the daemon;
    else it has the host's network, and ports are leased and set as variables."""
    limits: dict[str, float] = {}  # noqa: RUF012 - a tuple's default, never changed
    """The default limits; empty for a level without limits."""

    @property
    def is_default(self) -> bool:
        return self.name == DEFAULT

    @property
    def has_limits(self) -> bool:
        return bool(self.limits)

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
        shares="git refs and config, network, all files that the user can read",
        cost="a checkout: time and disk use grow with the tracked files",
    ),
    Level(
        name="clone",
        workspace=LAYERS,
        isolation="namespace",
        isolates="all files at the project's own path, git, HOME, TMPDIR, ports by lease",
        shares="network, all files that the user can read",
        cost="milliseconds; the first capsule of a project copies its dependencies",
    ),
    Level(
        name="sandbox",
        workspace=LAYERS,
        isolation="sandbox",
        isolates="files, processes, network, kernel interfaces, limits",
        shares="the kernel",
        cost="milliseconds",
        networks=("allow", "none", "open"),
        has_own_network=True,
        limits={kind.name: _default_limit(kind) for kind in SETTABLE_LIMITS.values()},
    ),
    Level(
        name="container",
        workspace=None,
        isolation=None,
        isolates="as sandbox, with its own image",
        shares="the kernel",
        cost="an image; tenths of a second",
    ),
    Level(
        name="vm",
        workspace=None,
        isolation=None,
        isolates="everything, with its own kernel",
        shares="the hardware",
        cost="memory; seconds",
    ),
)
_WEAKER = {"sandbox": "atoll doctor; or without isolation: atoll new NAME --level clone"}
NAMES = tuple(level.name for level in LEVELS)


def find_level(name: str) -> Level | None:
    return next((level for level in LEVELS if level.name == name), None)


def has_own_network(name: str) -> bool:
    """Of capsules at the level `name`: the one place that decides it."""
    level = find_level(name)
    return level is not None and level.has_own_network


def require_level(name: str) -> Level:
    """Raises SpecError for an unknown level, IsolationError for one that does not exist yet."""
    level = find_level(name)
    if level is None:
        import difflib  # noqa: PLC0415 - only for a mistake

        close = difflib.get_close_matches(name, NAMES, n=1)
        raise SpecError(
            f"unknown level `{name}`",
            hint=f"did you mean `{close[0]}`?" if close else f"one of {', '.join(NAMES)}",
        )
    if not level.exists:
        raise IsolationError(
            f"level `{name}` is not implemented yet",
            hint=f"atoll new NAME --level {DEFAULT}",
        )
    return level


class LevelDrivers(NamedTuple):
    """The drivers of a level that work on this host."""

    workspace: str
    isolation: str
    mode: str = ""
    """How a layered workspace driver works here (`ProbeResult.mode`)."""


def require_drivers(level: Level, home: Path, *, wanted: str = AUTO) -> LevelDrivers:
    """The drivers of a level, for capsules below `home`; `wanted` names a layered driver.

    Raises IsolationError when this host lacks something.
    """
    drivers, problems = _find_drivers(level, home, wanted)
    if drivers is None or problems:
        cures = [problem.cure for problem in problems if problem.cure]
        other = _WEAKER.get(level.name, "atoll new NAME --level worktree")
        if wanted != AUTO:
            other = f"atoll new NAME --workspace {AUTO}"
        raise IsolationError(
            f"level `{level.name}` is not available on this host: "
            + "; ".join(problem.what for problem in problems),
            hint=" && ".join(cures) or other,
        )
    return drivers


def find_problems(level: Level, home: Path) -> list[Problem]:
    """What this host lacks for a level."""
    return _find_drivers(level, home, AUTO)[1]


def _find_drivers(
    level: Level, home: Path, wanted: str
) -> tuple[LevelDrivers | None, list[Problem]]:
    if level.workspace is None or level.isolation is None:
        return None, [Problem(what="not implemented yet")]
    problems = registry.isolation_driver(level.isolation).check(home)
    if level.workspace != LAYERS:
        found = registry.workspace_driver(level.workspace).check(home)
        return LevelDrivers(level.workspace, level.isolation), [*found, *problems]
    if programs.find_program("git") is None:
        return None, [Problem(what="git is not installed", cure="apt-get install git"), *problems]
    failed = []
    for name in registry.LAYERED if wanted == AUTO else (wanted,):
        mode, reason = registry.layered_driver(name).probe(home)
        if mode is not None:
            return LevelDrivers(name, level.isolation, mode), problems
        failed.append(Problem(what=f"driver `{name}`: {reason}"))
    return None, [*failed, *problems]
