"""Every contract on one page.

All drivers share four verbs. `check` returns what this host lacks, each with its fix. `plan` is
pure. `apply` acts. `release` undoes `apply`: it is idempotent and also works from a process that
did not call `apply`. `release` may discard work, so callers call `save` first.

Every method that reads or writes may raise DriverError when a tool fails, and OSError when the
filesystem does. Docstrings list what a method raises besides. Methods marked as pure, and those
that start with `is_` or `has_`, raise nothing else.

The conformance suites in `atoll.testing.conformance` test each driver, and its fake, against this
page.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from atoll.model.agent import AgentEvent
from atoll.model.enclosure import Enclosure, Limits, View
from atoll.model.plan import IsolationPlan, WorkspacePlan
from atoll.model.secretvalues import SecretSearch
from atoll.model.state import Patch, Problem, RecoveryPoint, Work
from atoll.model.untrusted import InsidePath

if TYPE_CHECKING:
    from atoll.host.listening_sockets import Listing


class WorkspaceRequest(NamedTuple):
    name: str
    repository: str
    checkout: str
    base_commit: str
    path: str
    """A path below Atoll's home that the driver may use for the workspace."""
    pool: str = ""
    """The directory of the project's layers."""
    mode: str = ""
    """How a layered driver works here, as its `probe` found out."""

    def planned(self, driver: str, *, path: str, branch: str | None) -> WorkspacePlan:
        """The plan of `driver` for this request."""
        return WorkspacePlan(
            driver=driver,
            repository=self.repository,
            checkout=self.checkout,
            path=path,
            branch=branch,
            base_commit=self.base_commit,
        )


class IsolationRequest(NamedTuple):
    workspace: str
    directory: str
    variables: Mapping[str, str]
    author: str
    email: str
    private: str = ""
    """With a view: the mount point of the directory with HOME and TMPDIR."""
    tools: str = ""
    """A directory that comes first in PATH."""
    home: str = ""
    """With walls: the path of HOME inside."""
    is_root: bool = False
    """Whether root makes the capsule."""
    network: str = "open"
    setup_network: str = ""
    allow: tuple[str, ...] = ()
    limits: Limits = Limits()
    """As in `IsolationPlan`."""


class ProbeResult(NamedTuple):
    """What a driver found out by trying."""

    mode: str | None
    """How it works here; None when it does not."""
    reason: str


class Sealed(NamedTuple):
    """The state of a workspace at one moment."""

    layers: tuple[str, ...]
    """Hold that state, and do not change any more."""
    plan: WorkspacePlan
    """With which the workspace continues."""
    inexact: tuple[str, ...] = ()
    """Examples of paths that changed while they were copied, for messages."""


class Author(NamedTuple):
    """The author and committer of a commit."""

    name: str
    address: str


class CommitResult(NamedTuple):
    """A commit that the host made from the files of a workspace."""

    commit: str
    parent: str | None
    pack: bytes
    """Its objects, for the capsule's own repository."""
    notes: tuple[str, ...] = ()
    """Warnings for the owner."""


class ExportedCommits(NamedTuple):
    """The tip of a capsule's branch, which is in the owner's repository now."""

    commit: str
    notes: tuple[str, ...] = ()
    """Warnings for the owner."""


class WorkspaceDriver(Protocol):
    """Gives a capsule its files.

    The host reads the files of a workspace; it executes nothing in it.
    """

    @property
    def name(self) -> str: ...

    def check(self, home: Path) -> list[Problem]:
        """What this host lacks for workspaces below `home`. Changes nothing but caches there."""

    def plan(self, request: WorkspaceRequest) -> WorkspacePlan:
        """Pure. Raises PrerequisiteError when the requested paths cannot be used together."""

    def apply(self, plan: WorkspacePlan, *, lock: int) -> None:
        """Makes the workspace. Tools that it starts inherit the descriptor `lock`.

        Raises StateError when the branch or the path exists. May leave a partial workspace behind
        when it raises: the caller releases it.
        """

    def release(self, plan: WorkspacePlan, *, home: Path, keep_branch: bool) -> None:
        """Removes what `apply` made, complete or partial, if anything. After an error a second
        call continues.
        """

    def work(self, plan: WorkspacePlan) -> Work:
        """What exists only in this workspace and its branch; for a plan without a branch, only in
        this workspace. Never raises for what a capsule has written: an unreadable workspace counts
        as work.
        """

    def save(
        self, plan: WorkspacePlan, *, point: str, base: str, home: Path
    ) -> RecoveryPoint | None:
        """Stores all work as the recovery point `point`; returns None when there is no work. `base`
        is the commit that the work started from. Idempotent for the same `point`.

        Afterwards `release` loses nothing. Raises StateError when something cannot be read,
        PrerequisiteError when the disk is full.
        """

    def diff(self, plan: WorkspacePlan, *, base: str, stat: bool) -> Patch:
        """The difference from the commit `base`, with uncommitted and untracked files. Raises
        StateError when the workspace cannot be read.
        """


class SharedDriver(WorkspaceDriver, Protocol):
    """Gives a capsule files that belong to the owner's repository."""

    def restore(
        self, plan: WorkspacePlan, point: RecoveryPoint, *, lock: int
    ) -> tuple[InsidePath, ...]:
        """Restores the files and the index of a recovery point in a new workspace. Returns the
        files that are left out because git would treat their directories as repositories.
        """


class LayeredDriver(WorkspaceDriver, Protocol):
    """Gives a capsule a private view of frozen layers, with snapshots, rollback and forks.

    A plan has no layers until `on` sets them, before `apply`.
    """

    @property
    def stores_changes(self) -> bool:
        """Whether an upper layer holds only what differs from the layers below it; otherwise it is
        a whole copy.
        """
        ...

    def probe(self, home: Path) -> ProbeResult:
        """Whether and how this driver works below `home`."""

    def on(self, plan: WorkspacePlan, layers: tuple[str, ...], upper: str) -> WorkspacePlan:
        """The plan on these layers, with `upper` as the name of the layer that is written. Pure."""

    def prepare(self, plan: WorkspacePlan) -> None:
        """Makes the empty upper layer unless it exists."""

    def tools(self, plan: WorkspacePlan) -> str:
        """A directory that must come first in PATH inside the view; empty when there is none."""

    def view(self, plan: WorkspacePlan) -> View:
        """The mounts that show the workspace at the project's path. Prepares the upper layer for
        mounting. Raises StateError when the checkout or the base commit is gone.
        """

    def seal(self, plan: WorkspacePlan, *, busy: bool) -> Sealed:
        """Freezes the state of the workspace. With `busy`, processes that are paused meanwhile may
        have files open; otherwise nothing uses the view. Raises PrerequisiteError when the disk is
        full.
        """

    def discard(self, plan: WorkspacePlan, *, home: Path) -> None:
        """Removes the upper layer, if there is one."""

    def is_untouched(self, plan: WorkspacePlan) -> bool:
        """Whether nothing was written to the upper layer; False when in doubt."""

    def is_pristine(self, plan: WorkspacePlan) -> bool:
        """Whether the workspace is as `apply` made it, without opening its view; False when in
        doubt.
        """

    def put_back(self, plan: WorkspacePlan, aside: Path) -> None:
        """Restores the files that `save` stored at `aside` in a new workspace, whose view is
        closed. Raises StateError when they cannot be read.
        """

    def place(self, plan: WorkspacePlan) -> Path | None:
        """A path of the workspace on the host, without its view; None when there is none."""

    def tip(self, plan: WorkspacePlan) -> str | None:
        """The commit of the branch, if it can be read from a single file; a hint, not a fact."""

    def export_commits(
        self, plan: WorkspacePlan, *, everything: bool, search: SecretSearch | None = None
    ) -> ExportedCommits | None:
        """Imports the commits of the branch into the owner's repository, through a quarantine, with
        the Git LFS objects and submodule commits that they refer to; with `everything` also the
        uncommitted changes, as a commit on top. Returns None when there is no branch. Updates no
        ref. Raises StateError when the import is refused, also because something new contains what
        `search` finds.
        """

    def commit(
        self,
        plan: WorkspacePlan,
        message: str,
        author: Author,
        *,
        search: SecretSearch | None = None,
    ) -> CommitResult:
        """Commits all files on top of the branch, in the owner's repository. Updates no ref. Raises
        StateError when HEAD is not on the branch or nothing has changed, or when something new
        contains what `search` finds.
        """

    def tree(self, plan: WorkspacePlan) -> str:
        """The git tree that a commit of all files would have; nothing is imported. Raises
        StateError when the workspace cannot be read.
        """

    def has_hook(self, plan: WorkspacePlan, name: str) -> bool:
        """Whether a commit in the workspace would run the hook `name`, as its files suggest."""

    def diff_since(self, plan: WorkspacePlan, layers: tuple[str, ...], *, stat: bool) -> Patch:
        """The difference from an earlier state of the workspace, which `layers` hold. Raises
        StateError when one of both cannot be read.
        """

    def rename(self, plan: WorkspacePlan, *, former: str) -> None:
        """Renames the branch `former` of a new fork, in which nothing has run yet, to the branch of
        `plan`. Raises StateError when the repository in the workspace was replaced.
        """


class IsolationDriver(Protocol):
    """Decides how processes inside a capsule are started, and what they can see."""

    @property
    def name(self) -> str: ...

    def check(self, home: Path) -> list[Problem]:
        """What this host lacks for capsules below `home`. Changes nothing but caches there."""

    def plan(self, request: IsolationRequest) -> IsolationPlan:
        """Pure. Raises IsolationError when a requested path cannot be shown in the sandbox."""

    def apply(self, plan: IsolationPlan) -> None:
        """Makes the private directories. Idempotent."""

    def release(self, plan: IsolationPlan, *, home: Path) -> None:
        """Removes them, if there are any."""

    def probe(self, place: Path) -> ProbeResult:
        """Builds its walls once, in the empty directory `place`, and tests them."""

    def visible(self, plan: IsolationPlan, owner: Mapping[str, str]) -> list[str] | None:
        """The paths of the host that processes inside can read; None means all."""

    def extend_view(self, plan: IsolationPlan, view: View, owner: Mapping[str, str]) -> View:
        """Adds to the view of a workspace what else processes inside see. Changes nothing on disk.
        Raises IsolationError when something needed cannot be shown.
        """

    def enclosure(self, plan: IsolationPlan, owner: Mapping[str, str]) -> Enclosure:
        """How to start a process inside. `owner` is the owner's environment, of which only
        allow-listed variables are used. Raises IsolationError when a wall cannot be built.
        """


class BrowserRequest(NamedTuple):
    program: str
    profile: str
    """The browser's profile directory."""
    url: str
    is_open: bool = False
    """Whether a window that Atoll started has this profile open."""


class BrowserDriver(Protocol):
    """One family of browsers: its program and its command lines."""

    @property
    def name(self) -> str: ...

    def find_program(self, path: str, *, avoid: str, chosen: str = "") -> str | None:
        """The browser's program in the directories of `path`, or `chosen` if that exists. Never one
        below `avoid`, the project.
        """

    def is_own(self, program: str) -> bool:
        """Whether a program, by name or path, is a browser of this family. Pure."""

    def check(self) -> list[Problem]:
        """What keeps this user from opening a window. Changes nothing."""

    def cure(self) -> str:
        """The command that installs it."""

    def plan_window(self, request: BrowserRequest) -> tuple[str, ...]:
        """The command that opens a window on the host, or a tab in an open window. Pure."""

    def is_lasting(self, path: str) -> bool:
        """Whether a path in a profile is worth keeping: neither a cache nor a lock. Pure."""


class DrivenBrowser(BrowserDriver, Protocol):
    """A browser that also runs headless, with a DevTools port; `dial` connects to that port."""

    def plan_headless(self, request: BrowserRequest, *, port: int, cwd: str) -> tuple[str, ...]:
        """The command inside a capsule, where nothing else has the profile open. Pure."""

    def is_answering(self, dial: Callable[[], socket.socket]) -> bool:
        """Whether a browser answers on the port; not whether it is the capsule's own."""

    def open_page(self, dial: Callable[[], socket.socket], url: str) -> None:
        """Raises OSError when no browser answers."""

    def close(self, dial: Callable[[], socket.socket]) -> None:
        """Asks the browser to save its state and exit; the caller waits for its end. Raises OSError
        when no browser answers.
        """


class HomeFile(NamedTuple):
    """A file for the private home of a capsule. Nothing in it is secret."""

    path: str
    """Below the home directory."""
    content: bytes
    is_read_only: bool = False
    """Whether the agent has it to read only: a copy of the owner's that it does not rewrite."""


class FoundLogin(NamedTuple):
    """The owner's login of an agent's program, as it is on the host now."""

    account: str
    """What the login says of whose it is; empty when it says nothing."""
    expires_at: float | None
    """When the value stops working, unless the owner's own program renews it."""
    is_expired: bool
    values: Mapping[str, str]
    """The real values by field: `""` of a key, otherwise `a`, `b`, … as in `Login.tokens`."""
    cure: str = ""
    """The owner's next command when it is expired."""
    kept: str = ""
    """JSON text of what may be copied from the owner's file: nothing secret."""

    def __repr__(self) -> str:
        return f"FoundLogin(fields={sorted(self.values)!r}, is_expired={self.is_expired})"


class InsideLogin(NamedTuple):
    """What a capsule holds instead of a login. Nothing in it is secret."""

    env: Mapping[str, str]
    files: tuple[HomeFile, ...]
    key: str = ""
    """The placeholder of a login that is a single key."""


class EventFormat(Protocol):
    """Reads the output of an agent. One instance reads one turn, from its first line.

    What it reads is hostile: every text is shortened, and nothing raises.
    """

    def feed(self, line: str) -> list[AgentEvent]:
        """The events of one line, without its newline; empty for a line that says nothing."""
        ...


class VaultKey(NamedTuple):
    """The key that all values of a vault are encrypted with."""

    id: str
    """Names the key; not secret."""
    secret: bytes

    def __repr__(self) -> str:
        return f"VaultKey(id={self.id!r})"


class KeptValue(NamedTuple):
    """A value of a vault."""

    value: bytes
    stored_at: float
    revision: str
    """Of the settings that the value is for."""
    earlier: tuple[bytes, ...] = ()
    """The values that it had before, the latest first; a few of them."""

    def __repr__(self) -> str:
        return f"KeptValue(stored_at={self.stored_at})"


class Vault(Protocol):
    """Values at rest, each encrypted and bound to its project and name.

    Every method raises StateError for a vault that is damaged, of a newer version, or readable by
    others.
    """

    def names(self, project: str) -> list[str]: ...

    def is_empty(self) -> bool: ...

    def find(self, key: VaultKey, project: str, name: str) -> KeptValue | None:
        """Raises StateError when the value was encrypted with another key, or has been changed."""

    def put(
        self,
        key: VaultKey,
        project: str,
        name: str,
        value: bytes,
        *,
        revision: str = "",
        is_change: bool = False,
    ) -> bool:
        """Stores a value; the one before is kept as an earlier one. Does nothing but set the time
        when it is the same. Raises StateError as `find`.

        Returns False, and changes nothing, if the value there is of another revision; not with
        `is_change`.
        """
        ...

    def remove(self, project: str, name: str) -> bool:
        """Removes a value with its earlier ones, without the key; returns whether there was one."""
        ...


class KeyStore(Protocol):
    """Where the key of a vault is. Every method raises StateError for a key file that is damaged,
    of a newer version, or readable by others.
    """

    def place(self) -> str:
        """`none`, `file`, `keyring`, or `passphrase`: a file that is encrypted with one."""
        ...

    def key_id(self) -> str | None:
        """Names the key, without reading it; None when there is none."""

    def load(self, passphrase: str = "") -> VaultKey:
        """Raises SecretUnavailable when it cannot be read now, StateError when there is no key or
        the passphrase is wrong.
        """
        ...

    def ensure(self, *, may_create: Callable[[], bool]) -> None:
        """Creates a key when there is none. Raises StateError when `may_create` forbids it."""

    def protect(self, key: VaultKey, passphrase: str) -> None:
        """Encrypts the key with a passphrase; with an empty one, stores it as `ensure` does."""


class SourceRequest(NamedTuple):
    """What a source of secrets reads."""

    of: str
    """The variable, path, command or keyring entry."""
    owner: Mapping[str, str]
    """The owner's environment."""
    root: str = ""
    """The project; in a file below it, no link is followed."""
    path: str = ""
    """The PATH of a command."""


class ValueSource(Protocol):
    """One kind of place that values are read from."""

    def read(self, request: SourceRequest) -> bytes:
        """The value, at most 64 KiB. Raises SecretUnavailable, never with a part of the value."""
        ...


class NetworkGone(ConnectionError):  # noqa: N818 - it is a state of affairs
    """The network has ended."""


class NetworkSilent(NetworkGone):
    """The process that holds the network does not answer; it may later."""


class EgressSockets(NamedTuple):
    """Sockets in the capsule's network, bound and listening, non-blocking."""

    proxy: socket.socket
    transparent: tuple[socket.socket, ...]
    """Receive redirected connections, over IPv4 and IPv6."""
    dns: tuple[socket.socket, ...]
    """For datagrams."""
    dns_streams: tuple[socket.socket, ...]


class CapsuleNetwork(Protocol):
    """The network of a capsule, as the daemon's egress and published ports use it.

    It is implemented by the holder of a view today, later by a container or a virtual machine; the
    same code serves all of them. Every coroutine raises NetworkGone when the network has ended,
    NetworkSilent when its holder does not answer.
    """

    async def connect(self) -> None:
        """Must succeed before anything else is called."""

    async def wait_closed(self) -> None:
        """Returns when the network has ended."""

    async def open_egress(self, opened: ExitStack) -> EgressSockets:
        """The sockets for what leaves the capsule; `opened` closes them.

        OSError when a process inside has taken a port.
        """
        ...

    async def listen(self, opened: ExitStack, port: int) -> tuple[socket.socket, ...]:
        """Listening, non-blocking sockets on the capsule's loopback, one per address family;
        `opened` closes them. OSError when a process inside has taken the port.
        """
        ...

    async def dial(self, port: int, address: str = "127.0.0.1") -> socket.socket:
        """A connected, non-blocking socket. ConnectionError when nothing accepts there,
        TimeoutError when nothing answers.
        """
        ...

    def may_have_changed(self) -> bool:
        """Whether the listening ports may differ from the last `listening`; cheap."""
        ...

    async def listening(self) -> Listing:
        """What accepts connections inside. Other tasks run between two parts of a long answer."""
        ...

    def close(self) -> None:
        """Releases what the daemon holds; the network itself stays."""
