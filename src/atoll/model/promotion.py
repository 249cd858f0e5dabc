"""Promotion: the stages through which work reaches the owner's branch and beyond."""

from __future__ import annotations

from typing import NamedTuple

VERIFIED, LOCAL = "verified", "local"
"""The stages of a project that declares none."""
STAGE_S = 3600.0
"""How long the command of a stage may take that names no limit."""


class StageSpec(NamedTuple):
    """A stage as the project file declares it."""

    name: str
    checks: tuple[str, ...] = ()
    branch: str | None = None
    """The branch that the work lands on."""
    merge: str | None = None
    """`squash`, `merge`, `rebase`, `ff` or `patch`."""
    run: str | None = None
    approve: bool = False
    undo: str | None = None
    timeout_s: float = STAGE_S
    soak_s: float = 0.0
    health: str | None = None
