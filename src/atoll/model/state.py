"""Records of observed state; nothing here is taken from what an agent claims."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from atoll.model.names import printable


class CapsuleState(StrEnum):
    """A capsule's lifecycle. Only `ready` is permanent; the others last for one command."""

    CREATING = "creating"
    READY = "ready"
    REMOVING = "removing"


class SnapshotKind(StrEnum):
    MANUAL = "manual"
    AUTOMATIC = "automatic"
    """Taken before a run or a fork."""
    ROLLBACK = "rollback"
    """The state that a rollback replaced."""


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


class ProjectRecord(NamedTuple):
    """A git repository that Atoll knows; `root` is the owner's checkout."""

    id: str
    name: str
    root: str
    git_dir: str
    """The repository's common directory: all its worktrees are one project."""


class CheckoutRecord(NamedTuple):
    """The capsule that has the project's canonical ports."""

    capsule_id: int
    ports: tuple[int, ...] = ()
    """Ports that the owner named, in addition to what the project file declares."""


RECOVERED = "recovered"
"""The `base_ref` of a capsule that was made of a recovery point."""


class CapsuleRecord(NamedTuple):
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
    """Leased host ports, by name."""
    numbers: dict[str, int] = {}  # noqa: RUF012 - a tuple's default, never changed
    """The ports inside the capsule's own network, by name; only declared ones."""
    exported: tuple[str, ...] = ()
    """Commits that Atoll has set its branch to in the owner's repository."""
    automatic: bool = False
    """Whether a snapshot is taken before every run."""
    temporary: str = ""
    """The lock of the command that uses it for itself, and removes it; empty for one of the
    owner's.
    """

    @property
    def is_recovered(self) -> bool:
        """Whether it was made of a recovery point."""
        return self.base_ref == RECOVERED


class Snapshot(NamedTuple):
    """A point to which a capsule can be rolled back."""

    id: int
    capsule_id: int
    number: int
    message: str
    kind: SnapshotKind
    synced: bool
    """Whether it is synced to disk, so that it survives a power failure."""
    created_at: float
    parts: dict[str, str] = {}  # noqa: RUF012 - a tuple's default, never changed
    """What each part of the capsule stored for it, by name (`atoll.engine.state.parts`)."""
    moment: str = ""
    """How writes were excluded while it was taken (`atoll.engine.run.freezer.FrozenProcesses`)."""
    target: int | None = None
    """The number of the snapshot that a rollback returned to, if a rollback took this one."""

    @property
    def is_automatic(self) -> bool:
        return self.kind is not SnapshotKind.MANUAL


class PartChange(NamedTuple):
    """The payloads of a part after a snapshot or a rollback; empty means that there is nothing."""

    snapshot: str = ""
    """Stored with the new snapshot."""
    current: str = ""
    """Stored for the capsule, which continues with it."""


class Outcome(NamedTuple):
    """How a run ended. `exit_code` and `signal` are the main process's, as the kernel reports."""

    reason: Reason
    exit_code: int | None = None
    signal: int | None = None
    message: str | None = None
    leftover: int = 0
    cpu_s: float = 0.0
    max_rss_bytes: int = 0

    @property
    def shell_code(self) -> int:
        """The exit code that a shell reports for this outcome."""
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
    """The requested network, if it differs from the capsule's."""
    write: tuple[str, ...] = ()
    """Patterns of writable workspace paths; empty allows all."""
    internal: bool = False
    """Whether Atoll started it for itself."""

    @property
    def label(self) -> str:
        return f"{self.capsule_name}.{self.number}"


class Event(NamedTuple):
    """One change of state. Its id is a cursor: later events have higher ids."""

    id: int
    at: float
    kind: str
    """What changed and how, such as `run.ended`; a prefix names the group (`run.`)."""
    project_id: str
    capsule_id: int | None
    capsule: str | None
    """Its name; None when the event is about the whole project."""
    subject: str
    """Which run or snapshot (its number), rule or port (its name)."""
    payload: dict[str, str | int | list[int] | None]


def require_outcome(run: Run) -> Outcome:
    """The outcome of an ended run. Raises ValueError for a running one."""
    if run.outcome is None:
        raise ValueError(f"`{run.label}` has not ended")
    return run.outcome


class Process(NamedTuple):
    """One live process, from /proc."""

    pid: int
    ppid: int
    command: str
    cpu_s: float
    rss_bytes: int
    age_s: float


WHOLE = (".",)
"""Used instead of paths: the whole workspace."""


class Work(NamedTuple):
    """Work in a workspace that exists nowhere else."""

    uncommitted: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    commits: int = 0
    """Commits that are only stashed do not count."""
    nested: tuple[str, ...] = ()
    """Nested repositories: git cannot store them, so they are saved as files. Those that are no
    submodules end with `/`."""
    ignored: int = 0
    """Ignored top-level entries: build products, which no command promises to save."""
    unstorable: tuple[str, ...] = ()
    """Paths that cannot be read, are too large, or have names that git refuses: saved as files."""
    large: tuple[str, ...] = ()
    """Git LFS objects that commits refer to and that were not imported."""
    stashes: int = 0
    off_branch: int = 0
    """How many of the commits are not on the capsule's branch."""
    fetched: int = 0
    """How many of the commits are reachable only from the capsule's remote-tracking branches."""

    @property
    def any(self) -> bool:
        held = self.uncommitted or self.untracked or self.commits or self.stashes
        return bool(held or self.needs_files)

    @property
    def only_fetched(self) -> bool:
        """Whether all of the commits were fetched, so that the owner may fetch them too."""
        return 0 < self.fetched == self.commits

    @property
    def needs_files(self) -> bool:
        """Whether git cannot store all of it, so that files are saved."""
        return bool(self.nested or self.unstorable or self.large)

    @property
    def submodules(self) -> tuple[str, ...]:
        """The nested repositories that are submodules."""
        return tuple(path for path in self.nested if not path.endswith("/") and path not in WHOLE)

    @property
    def is_recordable(self) -> bool:
        """Whether submodules changed and a project commit can hold everything else."""
        others = self._others() or self.unstorable or self.large
        return bool(self.submodules) and not (others or self.stashes or self.off_branch)

    def _others(self) -> tuple[str, ...]:
        return tuple(path for path in self.nested if path not in self.submodules)

    def render(self) -> list[str]:
        """One phrase per kind of work, for `rm`."""
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
            (self.off_branch - self.fetched, ", outside the capsule's branch"),
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
    """The changes of a workspace."""

    text: bytes
    concealed: tuple[str, ...] = ()
    """Paths that commits of the branch change but the files do not show."""
    left_out: tuple[str, ...] = ()
    """Paths that the text cannot include: nested repositories and unreadable files."""
    refused: str = ""
    """Why the commits could not be examined."""
    ignored: int = 0
    """The number of ignored entries, if ignore rules were changed."""


class RecoveryPoint(NamedTuple):
    """Work that was saved before its capsule was removed."""

    id: str
    capsule: str
    ref: str
    commit: str
    base_commit: str
    head_commit: str
    stored_at: float
    index_commit: str | None = None
    files: str | None = None
    """A directory with the files that git cannot store."""
    files_base: str | None = None
    """The commit that these files differ from; None if they are complete."""
    lacks: str = ""
    """Why the commit lacks the uncommitted work (`files` then has it); empty if it is complete."""
    repository: str = ""
    """The stand-in repository that holds it, if the original is gone."""
    stashes: tuple[str, ...] = ()
    """Stash entries among the parents of the commit, newest first."""


class Problem(NamedTuple):
    """Something that this host lacks, and the remedy."""

    what: str
    cure: str | None = None


class Finding(NamedTuple):
    """One line of `atoll doctor`: what was checked, the result, and how long it took."""

    name: str
    good: bool
    detail: str
    cure: str | None = None
    needed: bool = True
    """False when the default level does not depend on it."""
    took_s: float = 0.0
    is_exposure: bool = False
    """Whether it fails when a capsule can reach something of the owner's, not for a lack."""
