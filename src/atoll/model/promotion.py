"""Promotion: the stages through which work reaches the owner's branch and beyond."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, NamedTuple

from atoll.model.check import CheckSpec, parse_check_spec

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

    @property
    def lands(self) -> bool:
        """Whether the work reaches a branch or checkout of the owner's here."""
        return self.name == LOCAL or self.branch is not None or self.merge is not None


class PromotionState(StrEnum):
    RUNNING = "running"
    """Under way; also while no process carries it on."""
    WAITING = "waiting"
    """It needs something of a person: `reason` and `hint` say what."""
    PASSED = "passed"
    """Every stage up to the one that was asked for has passed."""
    FAILED = "failed"
    """A check, a command or the health of a stage said no, or a tool failed."""
    UNDOING = "undoing"
    """It is being taken back; also while no process carries that on."""
    UNDONE = "undone"


class StepAct(StrEnum):
    CHECK = "check"
    """Checks on the exact tree, in fresh capsules."""
    ACCEPT = "accept"
    """A yes to files that can run code on the owner's machine."""
    LAND = "land"
    RUN = "run"
    HEALTH = "health"
    PASS = "pass"  # noqa: S105 - no password
    """The stage has passed."""
    UNDO_RUN = "undo-run"
    UNDO_LAND = "undo-land"


class StepState(StrEnum):
    STARTED = "started"
    """Stored before the act. One that stays like this was killed in the middle."""
    DONE = "done"
    FAILED = "failed"
    UNDONE = "undone"


class StepFacts(NamedTuple):
    """What is known of a step; which fields are set depends on its act."""

    commit: str = ""
    tree: str = ""
    ref: str = ""
    """The branch that the work lands on, in full."""
    old: str = ""
    """Where the branch was."""
    new: str = ""
    """Where it is after the landing; of a patch, the commit whose files were brought in."""
    way: str = ""
    """`squash`, `merge`, `rebase`, `ff` or `patch`."""
    place: str = ""
    """The checkout whose files changed; empty if none has the branch."""
    command: str = ""
    undo: str = ""
    """The command that undoes it, as it was declared then."""
    timeout_s: float = STAGE_S
    previous: str = ""
    """The commit that was at this stage before."""
    exit_code: int | None = None
    observed_s: float = 0.0
    """How long the health has held."""
    checks: tuple[int, ...] = ()
    """The stored results that prove it."""
    kept: str = ""
    """The capsule that holds the conflict which prevented a landing."""
    kinds: tuple[str, ...] = ()
    """Of the risky files that were accepted."""
    by: str = ""
    message: str = ""
    """Why it failed, or what is notable."""
    output: str = ""
    """The end of the output of a command."""
    process: tuple[int, ...] = ()
    """Of a command that was started: its process id, and when that began, in clock ticks."""
    log: str = ""
    """The file below Atoll's home that holds more of it."""

    def encode(self) -> str:
        """Without the fields that have their default."""
        defaults: dict[str, Any] = StepFacts()._asdict()
        fields = {k: value for k, value in self._asdict().items() if value != defaults[k]}
        return json.dumps(fields)


class PromotionStep(NamedTuple):
    """One act of a promotion, as the journal has it."""

    promotion_id: int
    position: int
    stage: str
    act: StepAct
    state: StepState
    at: float
    facts: StepFacts = StepFacts()


class PromotionSpec(NamedTuple):
    """What is promoted, and what was asked for last."""

    commit: str
    """The tip of the capsule's branch, in the owner's repository."""
    tree: str
    base_commit: str
    level: str
    network: str = ""
    to: str = LOCAL
    agent: str = ""
    task: str = ""
    """The first line of what the agent was asked for."""
    message: str = ""
    base_ref: str = ""
    """What the capsule started from, as it was named."""
    reason: str = ""
    """Why it waits or has failed."""
    hint: str = ""
    exit_code: int = 0
    """What the last `atoll promote` ended with."""
    waiting_stage: str = ""
    """The stage that waits for an approval."""
    waiting_tree: str = ""
    """Of which tree."""
    checks: tuple[CheckSpec, ...] = ()
    """That must pass besides those of the project."""

    def encode(self) -> str:
        return json.dumps({**self._asdict(), "checks": [one._asdict() for one in self.checks]})


class Promotion(NamedTuple):
    """The way of one commit of a capsule through the stages."""

    id: int
    project_id: str
    capsule: str
    state: PromotionState
    created_at: float
    ended_at: float | None
    spec: PromotionSpec


class Approval(NamedTuple):
    """A yes of a person to a tree at a stage."""

    id: int
    project_id: str
    capsule: str
    stage: str
    tree: str
    by: str
    at: float


def parse_spec(payload: str) -> PromotionSpec:
    """Raises ValueError, TypeError or KeyError for a damaged record."""
    found: dict[str, Any] = json.loads(payload)
    checks = tuple(parse_check_spec(one) for one in found.pop("checks", ()))
    return PromotionSpec(**found, checks=checks)


def parse_facts(payload: str) -> StepFacts:
    """Raises ValueError, TypeError or KeyError for a damaged record."""
    found: dict[str, Any] = json.loads(payload)
    for key in ("checks", "kinds", "process"):
        if key in found:
            found[key] = tuple(found[key])
    return StepFacts(**found)
