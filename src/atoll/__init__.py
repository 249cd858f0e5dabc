"""Atoll gives every AI coding agent its own capsule of a project.

    import atoll

    with atoll.open_project(".").new("fix-auth") as capsule:
        result = capsule.run(["pytest", "-q"])

This is the library's face: it only re-exports, and only when asked, so that the command line and
the keeper start fast.
"""

from __future__ import annotations

from atoll.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from atoll.engine.capsules import Capsule
    from atoll.engine.home import Home, open_home
    from atoll.engine.projects import CapsuleSpec, Project, open_project
    from atoll.engine.run.captured_output import Result
    from atoll.engine.run.runs import RunSpec
    from atoll.model.errors import (
        AtollError,
        DriverError,
        Interrupted,
        IsolationError,
        PrerequisiteError,
        SpecError,
        StateError,
    )
    from atoll.model.state import Event, Outcome, RecoveryPoint, Run, Snapshot, Work

_HOMES = {
    "AtollError": "atoll.model.errors",
    "Capsule": "atoll.engine.capsules",
    "CapsuleSpec": "atoll.engine.projects",
    "DriverError": "atoll.model.errors",
    "Event": "atoll.model.state",
    "Home": "atoll.engine.home",
    "Interrupted": "atoll.model.errors",
    "IsolationError": "atoll.model.errors",
    "Outcome": "atoll.model.state",
    "PrerequisiteError": "atoll.model.errors",
    "Project": "atoll.engine.projects",
    "RecoveryPoint": "atoll.model.state",
    "Result": "atoll.engine.run.captured_output",
    "Run": "atoll.model.state",
    "RunSpec": "atoll.engine.run.runs",
    "Snapshot": "atoll.model.state",
    "SpecError": "atoll.model.errors",
    "StateError": "atoll.model.errors",
    "Work": "atoll.model.state",
    "open_home": "atoll.engine.home",
    "open_project": "atoll.engine.projects",
}

__all__ = [
    "AtollError",
    "Capsule",
    "CapsuleSpec",
    "DriverError",
    "Event",
    "Home",
    "Interrupted",
    "IsolationError",
    "Outcome",
    "PrerequisiteError",
    "Project",
    "RecoveryPoint",
    "Result",
    "Run",
    "RunSpec",
    "Snapshot",
    "SpecError",
    "StateError",
    "Work",
    "__version__",
    "open_home",
    "open_project",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module `atoll` has no attribute `{name}`")
    from importlib import import_module  # noqa: PLC0415 - only for those who use the library

    return getattr(import_module(home), name)
