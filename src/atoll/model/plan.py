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
    pool: str = ""
    """Where the project's layers lie; empty for drivers that have none."""
    layers: tuple[str, ...] = ()
    """What the workspace lies on, the lowest first."""
    upper: str = ""
    """The layer that is written."""
    way: str = ""
    """How the driver mounts here, as its probe found out."""
    git: str = ""
    """The git layer that it began with, which says what history is visible; not all `layers` of
    a snapshot name it."""
    disk_bytes: int = 0
    """The capsule's disk limit, which also bounds what is imported from it; 0 if there is none."""

    @property
    def is_dirty(self) -> bool:
        """Whether it began with what the owner had not committed."""
        return any(layer.startswith("x") for layer in self.layers)


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
    """Where the private places lie on the host before a view shows them."""
    holder: str = ""
    """The directory in which the view's holder listens; empty without a view."""
    tools: str = ""
    """A directory of programs that come first."""
    home: str = ""
    """Where HOME is shown behind walls, which lets it be where the owner's is."""
    uid: int | None = None
    """Whom its processes are to the kernel, when root makes the capsule."""
    network: str = "open"
    """`none`, `allow` or `open`; how that is done is the driver's matter."""
    setup_network: str = ""
    """That of the set-up commands, where it is another."""
    allow: tuple[str, ...] = ()
    """Rules and names of presets (`atoll.model.egress`, `atoll.model.presets`)."""
    limits: dict[str, float] = {}  # noqa: RUF012 - a tuple's default, never changed
    """What a capsule may use: `memory_bytes`, `cpus`, `pids`, `disk_bytes`, `files`, `idle_s` and
    `output_bytes`, those that are set."""


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
        # JSON knows no tuples.
        lists = {key: tuple(v) for key, v in payload.items() if isinstance(v, list)}
        return cls(kind=kind, plan=_KINDS[kind](**{**payload, **lists}))


class Refs(NamedTuple):
    """What the owner's repository holds: (commit or tag, full name), and what is checked out."""

    pairs: tuple[tuple[str, str], ...]
    head_ref: str | None
    head_commit: str | None

    def find(self, name: str) -> str | None:
        return next((commit for commit, ref in self.pairs if ref == name), None)


class View(NamedTuple):
    """A private mount namespace, as the keeper builds it."""

    user: bool
    """With a user namespace: without root."""
    pool: str
    """What the layers of an overlay are named relative to."""
    mounts: tuple[dict[str, object], ...]
    network: str = "host"
    """`host`, or how its own is let out: `none`, `allow` or `open`."""
    uid: int | None = None
    """Whom the files are shown to belong to, where that is not us."""
    group: dict[str, str] | None = None
    """The directories of the group that limits the processes, by their use."""
    room: dict[str, object] | None = None
    """The whole tree that walled processes see: its `root`, and its `entries` in order."""
    stores: tuple[dict[str, object], ...] = ()
    """Package stores that are still to be mounted, by `name`: the owner's is at `source`, of which
    the patterns in `hidden` are not shown."""


class Ground(NamedTuple):
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
    ground: Ground = Ground()
    numbers: dict[str, int] = {}  # noqa: RUF012 - a tuple's default, never changed
    """Of these names, the ports as the project declares them."""
    refs: Refs | None = None
    """The owner's refs when the plan was made; not part of what is held."""

    def leases(self) -> tuple[Lease, ...]:
        """In the order of making; release goes backwards."""
        return (
            Lease(kind="workspace", plan=self.workspace),
            Lease(kind="isolation", plan=self.isolation),
        )

    def describe(self) -> list[str]:
        """The plan as `new --dry-run` prints it: one line per act."""
        ports = f" and ports for {', '.join(self.ports)}" if self.ports else ""
        lines = [f"lease the name `{self.name}`{ports}"]
        if self.workspace.branch is not None:
            lines.append(
                f"make a workspace of {self.base_ref} ({self.base_commit[:10]}) on branch "
                f"`{self.workspace.branch}` at {self.workspace.path}, "
                f"with driver `{self.workspace.driver}`"
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
    holder: str = ""
    """The directory in which the view's holder listens; empty when the host's own view is meant."""
    walls: dict[str, object] | None = None
    """What stands around the process; None without any."""
    limits: dict[str, object] | None = None
    """What it may use; None when that is nobody's matter."""
    network: str = "host"
    """`host`, or how the capsule's own is let out: `none`, `allow` or `open`."""

    @property
    def has_egress(self) -> bool:
        return self.network in ("allow", "open")

    def around(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        return (*self.prefix, *argv)

    def adding(self, variables: dict[str, str]) -> Enclosure:
        return self._replace(env={**self.env, **variables})
