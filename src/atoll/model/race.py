"""Races: several attempts at one task, each in a capsule of its own, and what came of them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from atoll.model.agent import AgentBudget
from atoll.model.check import CheckSpec


class RaceState(StrEnum):
    RUNNING = "running"
    """Candidates are queued, at work or being checked; also while no process carries it on."""
    FINISHED = "finished"
    """Every candidate has ended, and the evidence is complete."""


class CandidateState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    """Its capsule is being made."""
    RUNNING = "running"
    CHECKING = "checking"
    """It has ended, its tree is recorded, and it is being checked."""
    DONE = "done"
    FAILED = "failed"
    """It left no tree that could be checked; `reason` says why."""


class CandidateSpec(NamedTuple):
    """What one candidate does: an agent with a prompt, or a command."""

    agent: str = ""
    """As `atoll spawn` takes it; empty for a command."""
    prompt: str = ""
    argv: tuple[str, ...] = ()
    """A command, run in the root of the project; with the agent `command` its command line."""
    env: dict[str, str] = {}  # noqa: RUF012 - a tuple's default, never changed
    """The variables in which it differs from the others."""
    model: str = ""
    graft: tuple[str, ...] = ()
    """Of which parts of other candidates it consists, as `NAME:PATH`; nothing runs in it."""
    script: str = ""
    """The content of a scripted agent when the race began: the file may have changed since."""


class RaceSpec(NamedTuple):
    """What a race was asked for. It is stored, so that another process can carry it on."""

    task: str
    candidates: tuple[CandidateSpec, ...]
    checks: tuple[CheckSpec, ...] = ()
    level: str | None = None
    network: str | None = None
    limits: tuple[str, ...] = ()
    budget: AgentBudget = AgentBudget()
    """Of each agent."""
    timeout_s: float | None = None
    """Of each candidate's run."""
    most: int | None = None
    """How many run at once; None: as many as the machine carries."""
    has_cross_tests: bool = True
    rule: str = ""
    """By which the winner is picked; empty: the default."""
    judge: str = ""
    """A shell command of the owner's that ranks the candidates."""
    promote_to: str = ""
    """The stage to which the winner is promoted; empty: none."""
    base_ref: str = ""
    """What the base commit was named, such as `main`."""
    accept: tuple[str, ...] = ()
    """The kinds of risky files with which it may be promoted."""


class Candidate(NamedTuple):
    """One attempt, as it is now."""

    race_id: int
    position: int
    name: str
    """Also that of its capsule, unless that was removed and its name taken."""
    state: CandidateState
    spec: CandidateSpec
    reason: str = ""
    run: int = 0
    """The number of its run in its capsule; 0 before it has one."""
    attempts: int = 0
    """How often it was started: a run that disappeared is started once more."""
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    commit: str = ""
    """The tip of its branch when it ended, in the owner's repository; empty before that."""
    tree: str = ""
    files: int = 0
    """Files that differ from the base."""
    added: int = 0
    removed: int = 0
    """Lines, of text files."""
    tokens: int = 0
    cost_usd: float | None = None
    is_removed: bool = False
    """Whether its capsule was removed after the race."""

    @property
    def has_ended(self) -> bool:
        return self.state in (CandidateState.DONE, CandidateState.FAILED)


class Race(NamedTuple):
    """A race as it is stored."""

    id: int
    project_id: str
    name: str
    state: RaceState
    base_commit: str
    winner: str | None
    created_at: float
    ended_at: float | None
    spec: RaceSpec
    is_stopping: bool = False
    """Whether the owner has ended it: nothing more is started or checked."""


class RaceRequest(NamedTuple):
    """What `race` is asked for, as it was typed."""

    prompt: str | bytes = ""
    prompts: tuple[str, ...] = ()
    """Several, each for a candidate of its own."""
    agents: tuple[str, ...] = ()
    """As `spawn` takes them, with `:N` for several of a kind."""
    argv: tuple[str, ...] = ()
    """A command; with the agent `command` its command line. `{prompt}` in a word is replaced."""
    vary: tuple[str, ...] = ()
    """`NAME=a,b,c`; with several, each combination is a candidate."""
    number: int = 1
    """Of candidates of each kind."""
    name: str | None = None
    base: str | None = None
    level: str | None = None
    network: str | None = None
    limits: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    """Names of checks, or shell commands; without any, the project's own."""
    has_checks: bool = True
    most: int | None = None
    budget: tuple[str, ...] = ()
    timeout_s: float | None = None
    model: str = ""
    rule: str = ""
    judge: str = ""
    has_cross_tests: bool = True
    promote_to: str = ""
    accept: tuple[str, ...] = ()
    """Kinds of risky files, as `promote --accept` takes them."""


def race_ref(race_id: int, what: int | str) -> str:
    """The ref that keeps the commit of a candidate, by its position, or the `base`."""
    return f"refs/atoll/races/{race_id}/{what}"
