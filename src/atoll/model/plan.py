"""What was decided: plans are pure values, made and tested without touching the machine.

A plan that is about to be carried out is written to the store as a lease first, so that any
process can find and undo what a crashed one left half-made. Plans therefore hold everything that
`release` needs, and nothing that only one process could know.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from atoll.model.enclosure import Limits, encode, parse
from atoll.model.layers import LayerKind, is_changed_inside


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
    pool: str = ""
    """The directory of the project's layers; empty for drivers without layers."""
    layers: tuple[str, ...] = ()
    """The layers below the workspace, the lowest first."""
    upper: str = ""
    """The layer that is written."""
    way: str = ""
    """How the driver mounts here, as its probe found out."""
    git: str = ""
    """The git layer that it started with, which decides what history is visible; not all `layers`
    of a snapshot include it."""
    disk_bytes: int = 0
    """The capsule's disk limit, which also bounds what is imported from it; 0 if there is none."""

    @property
    def is_layered(self) -> bool:
        """Whether it is a private view of frozen layers, which can be snapshot and forked."""
        return bool(self.pool)

    @property
    def is_dirty(self) -> bool:
        """Whether it began with the owner's uncommitted changes."""
        return any(map(LayerKind.DIRTY.matches, self.layers))

    @property
    def own_layers(self) -> list[str]:
        """The frozen layers that hold what the capsule has changed, the lowest first."""
        return [layer for layer in self.layers if is_changed_inside(layer)]


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
    seed: str = ""
    """The host path of the private directories, before a view shows them."""
    holder: str = ""
    """The directory in which the view's holder listens; empty without a view."""
    tools: str = ""
    """A directory of programs that come first."""
    home: str = ""
    """The path of HOME in a sandbox, which can be that of the owner's."""
    uid: int | None = None
    """The kernel's user id of its processes, when root creates the capsule."""
    network: str = "open"
    """`none`, `allow` or `open`; the driver decides how it is enforced."""
    setup_network: str = ""
    """That of the set-up commands, where it is another."""
    allow: tuple[str, ...] = ()
    """Rules and names of presets (`atoll.model.egress`, `atoll.model.presets`)."""
    limits: Limits = Limits()

    @property
    def has_view(self) -> bool:
        """Whether its processes start in a private view, which a holder keeps."""
        return bool(self.holder)

    @property
    def has_walls(self) -> bool:
        """Whether its processes are sandboxed."""
        return bool(self.home)


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
        payload = self.plan._asdict()
        if isinstance(self.plan, IsolationPlan):
            payload["limits"] = encode(self.plan.limits)
        return payload

    @classmethod
    def parse(cls, kind: str, payload: dict[str, Any]) -> Lease:
        # JSON knows no tuples.
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in payload.items()
        }
        if "limits" in values:
            values["limits"] = parse(Limits, values["limits"])
        return cls(kind=kind, plan=_KINDS[kind](**values))


class Refs(NamedTuple):
    """What the owner's repository holds: (commit or tag, full name), and what is checked out."""

    pairs: tuple[tuple[str, str], ...]
    head_ref: str | None
    head_commit: str | None

    def find(self, name: str) -> str | None:
        return next((commit for commit, ref in self.pairs if ref == name), None)


class FileSelection(NamedTuple):
    """What a capsule starts from besides its commit; for drivers that have layers."""

    dirty: bool = False
    carry: tuple[str, ...] | None = None
    """Ignored paths to carry; None means all that are found."""
    never: tuple[str, ...] = ()


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
    """The names that get a leased port."""
    setup: tuple[str, ...] = ()
    time_limit_s: float | None = None
    selection: FileSelection = FileSelection()
    numbers: dict[str, int] = {}  # noqa: RUF012 - a tuple's default, never changed
    """Of these names, the ports as the project declares them."""
    refs: Refs | None = None
    """The owner's refs when the plan was made; not stored."""
    temporary: str = ""
    """The lock of the command that uses the capsule for itself; empty for one of the owner's."""
    visible: tuple[str, ...] = ()
    """Commits that are visible inside besides the history of the base; not stored."""

    def describe(self) -> list[str]:
        """The plan as `new --dry-run` prints it: one line per act."""
        ports = f" and ports for {', '.join(self.ports)}" if self.ports else ""
        lines = [f"lease the name `{self.name}`{ports}"]
        if self.workspace.branch is not None:
            lines.append(
                f"create a workspace from {self.base_ref} ({self.base_commit[:10]}) on branch "
                f"`{self.workspace.branch}` at {self.workspace.path}, "
                f"with driver `{self.workspace.driver}`"
            )
        else:
            lines.append(f"use the checkout {self.workspace.path} itself")
        if self.isolation.private is not None:
            lines.append(f"create a private HOME and TMPDIR in {self.isolation.private}")
        return lines + [f"run `{command}` inside" for command in self.setup]


class Removal(NamedTuple):
    """How a capsule is to go."""

    point: str
    """The recovery point that takes its work."""
    keep_branch: bool
    save: bool = True
    """False for one that was never finished: it has no work yet, only an incomplete checkout."""
