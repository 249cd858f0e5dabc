"""What is: records as they were observed, never as somebody claimed."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from atoll.model.names import printable


class CapsuleState(StrEnum):
    """Where a capsule is in its life. Only `ready` lasts; the others belong to one command."""

    CREATING = "creating"
    READY = "ready"
    REMOVING = "removing"


class RunState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


class Reason(StrEnum):
    """Why a run ended."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    TIMEOUT = "timeout"
    STOPPED = "stopped"
    HANGUP = "hangup"
    OUTPUT = "output"
    OOM = "oom"
    PIDS = "pids"
    DISK = "disk"
    IDLE = "idle"
    NOT_STARTED = "not-started"
    NO_WALLS = "no-walls"
    LOST = "lost"


class Project(NamedTuple):
    """A git repository that Atoll knows; `root` is the owner's checkout."""

    id: str
    name: str
    root: str
    git_dir: str
    """The repository's common directory: all its worktrees are one project."""


class Checkout(NamedTuple):
    """Which capsule has the project's canonical ports."""

    capsule_id: int
    ports: tuple[int, ...] = ()
    """Ports that the owner named, in addition to what the project file declares."""


class Capsule(NamedTuple):
    id: int
    project_id: str
    name: str
    level: str
    state: CapsuleState
    base_commit: str
    base_ref: str
    branch: str | None
    workspace: str
    directory: str
    created_at: float
    time_limit_s: float | None
    ports: dict[str, int]
    """Leased on the host, by name."""
    numbers: dict[str, int] = {}  # noqa: RUF012 - a tuple's default, never changed
    """The same ports as the project knows them: what listens in a network of the capsule's own,
    and what is canonical. Without those that nobody declared."""
    exported: tuple[str, ...] = ()
    """Where its branch may stand in the owner's repository, by what Atoll itself did there."""
    automatic: bool = False
    """Whether a snapshot is taken before every run."""
    browser: str = ""
    """Which of its directories is the owner's browser profile; empty when there is none."""


class Snapshot(NamedTuple):
    """A point in a capsule's time to which it can return."""

    id: int
    capsule_id: int
    number: int
    message: str
    layers: tuple[str, ...]
    automatic: bool
    synced: bool
    """Whether it is known to be on disk: it then lives through a power cut."""
    created_at: float
    browser: str = ""
    """Which directory holds the owner's browser profile as it was; empty when there was none."""
    moment: str = ""
    """How it was known that nothing wrote while it was taken (`atoll.engine.freezer.Held`)."""


class Outcome(NamedTuple):
    """How a run ended. `exit_code` and `signal` are what the kernel said of the main process."""

    reason: Reason
    exit_code: int | None = None
    signal: int | None = None
    message: str | None = None
    leftover: int = 0
    cpu_s: float = 0.0
    max_rss_bytes: int = 0

    @property
    def shell_code(self) -> int:
        """The exit code that a shell would show for this end."""
        match self.reason:
            case Reason.TIMEOUT | Reason.IDLE:
                return 124
            case Reason.STOPPED:
                return 143
            case Reason.HANGUP:
                return 129
            case Reason.LOST | Reason.OUTPUT | Reason.OOM | Reason.PIDS | Reason.DISK:
                return 137
            case _:
                if self.exit_code is not None:
                    return self.exit_code
                return 128 + (self.signal or 9)

    @property
    def good(self) -> bool:
        return self.reason is Reason.EXITED and self.exit_code == 0


class Run(NamedTuple):
    """One process tree in a capsule. `number` counts within the capsule; `token` is unique."""

    id: int
    capsule_id: int
    capsule_name: str
    number: int
    token: str
    argv: tuple[str, ...]
    state: RunState
    background: bool
    tty: bool
    directory: str
    created_at: float
    ended_at: float | None = None
    outcome: Outcome | None = None
    network: str | None = None
    """What it asked for where that is not the capsule's own."""
    write: tuple[str, ...] = ()
    """Patterns for what it may write in the workspace; none means all of it."""

    @property
    def label(self) -> str:
        return f"{self.capsule_name}.{self.number}"


def require_outcome(run: Run) -> Outcome:
    """How an ended run ended."""
    if run.outcome is None:
        raise ValueError(f"`{run.label}` has not ended")
    return run.outcome


class Process(NamedTuple):
    """One live process, as /proc shows it."""

    pid: int
    ppid: int
    command: str
    cpu_s: float
    rss_bytes: int
    age_s: float


WHOLE = (".",)
"""In the place of paths: the whole workspace."""


class Work(NamedTuple):
    """What a workspace holds that exists nowhere else."""

    uncommitted: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    commits: int = 0
    """Those that are only stashed are not among them."""
    nested: tuple[str, ...] = ()
    """Repositories inside the workspace: git cannot store them, so they are kept as files. One that
    is no submodule ends with `/`."""
    ignored: int = 0
    """Ignored top-level entries: build products, which no command promises to keep."""
    unstorable: tuple[str, ...] = ()
    """Files and directories that cannot be read, that are too large, or whose name git refuses:
    they are kept as files, too."""
    large: tuple[str, ...] = ()
    """Git LFS objects that commits refer to and that were not imported."""
    stashes: int = 0
    off_branch: int = 0
    """How many of the commits are not on the capsule's own branch."""
    fetched: int = 0
    """How many of these only remote-tracking branches of the capsule hold."""

    @property
    def any(self) -> bool:
        held = self.uncommitted or self.untracked or self.commits or self.stashes
        return bool(held or self.needs_files)

    @property
    def only_fetched(self) -> bool:
        """Whether the owner may get all of the commits where the capsule has them from."""
        return 0 < self.fetched == self.commits

    @property
    def needs_files(self) -> bool:
        """Whether git cannot store some of it, so that files are kept."""
        return bool(self.nested or self.unstorable or self.large)

    @property
    def submodules(self) -> tuple[str, ...]:
        """Those of the nested repositories that are submodules."""
        return tuple(path for path in self.nested if not path.endswith("/") and path not in WHOLE)

    @property
    def is_recordable(self) -> bool:
        """Whether submodules have changed, and a commit of the project can hold all the rest."""
        others = self._others() or self.unstorable or self.large
        return bool(self.submodules) and not (others or self.stashes or self.off_branch)

    def _others(self) -> tuple[str, ...]:
        return tuple(path for path in self.nested if path not in self.submodules)

    def render(self) -> list[str]:
        """One phrase per kind of work, as `rm` shows them."""
        lines = []
        for one, several, paths in (
            ("uncommitted", "uncommitted", self.uncommitted),
            ("untracked", "untracked", self.untracked),
            ("changed submodule", "changed submodules", self.submodules),
            ("nested repository", "nested repositories", self._others()),
            ("file that git cannot store", "files that git cannot store", self.unstorable),
            ("Git LFS object not imported", "Git LFS objects not imported", self.large),
        ):
            if paths == WHOLE:
                lines.append("its files, which cannot be compared with a commit")
            elif paths:
                shown = ", ".join(f"`{printable(path)}`" for path in paths[:3])
                more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
                label = one if len(paths) == 1 else several
                lines.append(f"{len(paths)} {label}: {shown}{more}")
        for count, where in (
            (self.commits - self.off_branch, ""),
            (self.off_branch - self.fetched, ", outside of the capsule's branch"),
            (self.fetched, ", only remote-tracking branches inside"),
        ):
            if count:
                noun = "commit" if count == 1 else "commits"
                lines.append(f"{count} {noun} that no other branch holds{where}")
        if self.stashes:
            noun = "stash entry" if self.stashes == 1 else "stash entries"
            lines.append(f"{self.stashes} {noun}")
        return list(dict.fromkeys(lines))


class Patch(NamedTuple):
    """What a workspace changes."""

    text: bytes
    concealed: tuple[str, ...] = ()
    """What commits of the branch change and the files do not show."""
    left_out: tuple[str, ...] = ()
    """What the text cannot hold: repositories in the workspace, and what cannot be read."""
    refused: str = ""
    """Why the commits could not be looked at."""
    ignored: int = 0
    """How many entries are not shown because they are ignored, if ignore rules were changed."""


class RecoveryPoint(NamedTuple):
    """Work that was stored before its capsule was removed."""

    id: str
    capsule: str
    ref: str
    commit: str
    base_commit: str
    head_commit: str
    stored_at: float
    index_commit: str | None = None
    files: str | None = None
    """A directory beside the ref that holds what git cannot store."""
    files_base: str | None = None
    """The commit that the files there differ from; None when they are all files."""
    lacks: str = ""
    """Why the commit does not hold the uncommitted work, which is in `files` then; else empty."""
    repository: str = ""
    """The stand-in that holds it, when the capsule's own repository is gone."""
    stashes: tuple[str, ...] = ()
    """Stash entries among the parents of the commit, newest first."""


class Problem(NamedTuple):
    """Something that this host lacks, and what cures it."""

    what: str
    cure: str | None = None


class Finding(NamedTuple):
    """One line of `atoll doctor`: what was tried, what came of it, how long it took."""

    name: str
    good: bool
    detail: str
    cure: str | None = None
    needed: bool = True
    """False when only levels that are not the default depend on it."""
    took_s: float = 0.0
