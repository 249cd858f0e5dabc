"""What was decided: plans are pure values, made and tested without touching the machine.

A plan that is about to be carried out is written to the store as a lease first, so that any
process can find and undo what a crashed one left half-made. Plans therefore hold everything that
`release` needs, and nothing that only one process could know.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class WorkspacePlan(NamedTuple):
    """The files of one capsule: where they will be and what they start from."""

    driver: str
    repository: str
    """The owner's git directory."""
    checkout: str
    """The owner's working tree."""
    path: str
    branch: str | None
    base_commit: str


class IsolationPlan(NamedTuple):
    """The private places of one capsule, and how its processes are started."""

    driver: str
    workspace: str
    private: str | None
    """Holds HOME and TMPDIR; None at level `none`, which uses the owner's own."""
    variables: dict[str, str]
    """What the project file adds to the environment."""
    author: str = ""
    email: str = ""
    """The owner's git identity, so that commits made inside carry it."""


Plan = WorkspacePlan | IsolationPlan

_KINDS: dict[str, type[WorkspacePlan | IsolationPlan]] = {
    "workspace": WorkspacePlan,
    "isolation": IsolationPlan,
}


class Lease(NamedTuple):
    """A plan as it is held in the store."""

    kind: str
    plan: Plan

    def payload(self) -> dict[str, Any]:
        return self.plan._asdict()

    @classmethod
    def parse(cls, kind: str, payload: dict[str, Any]) -> Lease:
        return cls(kind=kind, plan=_KINDS[kind](**payload))


class CapsulePlan(NamedTuple):
    """Everything that `new` will do, in the order in which it will do it."""

    name: str
    project: str
    level: str
    base_ref: str
    base_commit: str
    directory: str
    workspace: WorkspacePlan
    isolation: IsolationPlan
    ports: tuple[str, ...]
    setup: tuple[str, ...] = ()
    time_limit_s: float | None = None

    def leases(self) -> tuple[Lease, ...]:
        """In the order of making; release goes backwards."""
        return (
            Lease(kind="workspace", plan=self.workspace),
            Lease(kind="isolation", plan=self.isolation),
        )

    def describe(self) -> list[str]:
        """The plan as `new --dry-run` prints it: one line per act."""
        lines = [f"lease the name `{self.name}` and ports for {', '.join(self.ports)}"]
        if self.workspace.branch is not None:
            lines.append(
                f"make a {self.workspace.driver} of {self.base_ref} ({self.base_commit[:10]}) "
                f"on branch `{self.workspace.branch}` at {self.workspace.path}"
            )
        else:
            lines.append(f"use the checkout {self.workspace.path} itself")
        if self.isolation.private is not None:
            lines.append(f"make a private HOME and TMPDIR in {self.isolation.private}")
        return lines + [f"run `{command}` inside" for command in self.setup]


class Removal(NamedTuple):
    """How a capsule is to go."""

    point: str
    """The recovery point that takes its work."""
    keep_branch: bool
    save: bool = True
    """False for one that was never finished: it holds nobody's work yet, only half a checkout."""


class Enclosure(NamedTuple):
    """How to start a process inside a capsule: the one value that other drivers need.

    `prefix` goes before the command, `env` is the whole environment, `cwd` the place to start.
    """

    env: dict[str, str]
    cwd: str
    prefix: tuple[str, ...] = ()

    def around(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        return (*self.prefix, *argv)

    def adding(self, variables: dict[str, str]) -> Enclosure:
        return Enclosure(env={**self.env, **variables}, cwd=self.cwd, prefix=self.prefix)
