"""Every contract on one page.

All drivers share four verbs: `check` says what this host lacks (each with its cure), `plan` is
pure, `apply` acts, `release` undoes it: idempotent, and callable from a process that never saw
`apply`. `release` never destroys work: whoever calls it has called `save` first.

A conformance suite in `atoll.testing.conformance` holds each driver, and its fake, to this page.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from atoll.model.plan import Enclosure, IsolationPlan, View, WorkspacePlan
from atoll.model.state import Patch, Problem, RecoveryPoint, Work
from atoll.model.untrusted import InsidePath


class WorkspaceRequest(NamedTuple):
    name: str
    repository: str
    checkout: str
    base_commit: str
    path: str
    """Where the workspace may be made; below Atoll's home."""
    pool: str = ""
    """Where the project's layers lie."""

    def planned(self, driver: str, *, path: str, branch: str | None) -> WorkspacePlan:
        """The request as a driver decided it."""
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
    seed: str = ""
    """For a capsule with a view: where that finds what it may write, on the host."""
    private: str = ""
    """For a capsule with a view: where that shows it."""
    tools: str = ""
    home: str = ""
    """For a capsule with walls: where it has its HOME."""
    is_root: bool = False
    network: str = "open"
    setup_network: str = ""
    allow: tuple[str, ...] = ()
    limits: Mapping[str, float] = {}
    """As in `IsolationPlan`."""


class Sealed(NamedTuple):
    """A workspace at one moment."""

    layers: tuple[str, ...]
    """What holds that moment; nothing writes there any more."""
    plan: WorkspacePlan
    """How the workspace goes on from there."""
    inexact: tuple[str, ...] = ()
    """Some paths, for people, that were written while they were copied; empty when none were."""


class Author(NamedTuple):
    """Who commits."""

    name: str
    address: str


class Committed(NamedTuple):
    """A commit that the host has made of a workspace's files."""

    commit: str
    parent: str | None
    pack: bytes
    """Its objects, for the capsule's own repository."""
    notes: tuple[str, ...] = ()
    """What the owner has to know, for warnings."""


class BroughtOut(NamedTuple):
    """Where a capsule's branch stands; the owner's repository has the commit."""

    commit: str
    notes: tuple[str, ...] = ()
    """What the owner has to know, for warnings."""


class WorkspaceDriver(Protocol):
    """Gives a capsule its files.

    What a workspace holds is read on the host, from its files; nothing in it is executed.
    """

    @property
    def name(self) -> str: ...

    def check(self, home: Path) -> list[Problem]:
        """What this host lacks for workspaces below `home`. Leaves nothing changed."""

    def plan(self, request: WorkspaceRequest) -> WorkspacePlan:
        """Pure."""

    def apply(self, plan: WorkspacePlan, *, lock: int) -> None:
        """Makes the workspace. Tools that it starts inherit `lock`.

        Raises StateError when the branch or the path is taken, DriverError when a tool fails.
        May leave something half-made behind in either case: the caller releases.
        """

    def release(self, plan: WorkspacePlan, *, home: Path, keep_branch: bool) -> None:
        """Removes what `apply` made, whole or half; fine when there is nothing.

        Raises DriverError when a tool fails; calling it again then goes on where it stopped.
        """

    def work(self, plan: WorkspacePlan) -> Work:
        """What exists only in this workspace and its branch. A plan without a branch asks what
        would be lost if the branch stayed.
        """

    def save(
        self, plan: WorkspacePlan, *, point: str, base: str, home: Path
    ) -> RecoveryPoint | None:
        """Stores all work under the recovery point `point`; None when there is none. `base` is
        the commit that the work began at.

        Afterwards `release` loses nothing. Idempotent for the same `point`.
        """

    def diff(self, plan: WorkspacePlan, *, base: str, stat: bool) -> Patch:
        """What differs from the commit `base`: committed or not, tracked or not."""


class SharedDriver(WorkspaceDriver, Protocol):
    """Gives a capsule files whose repository is the owner's own."""

    def restore(
        self, plan: WorkspacePlan, point: RecoveryPoint, *, lock: int
    ) -> tuple[InsidePath, ...]:
        """Brings a recovery point's files and index state into a fresh workspace. Returns the files
        that are left out, because git would take their directories for repositories.
        """


class LayeredDriver(WorkspaceDriver, Protocol):
    """Gives a capsule a private view of frozen layers, and lets it travel in time.

    `plan` leaves open which layers there are; `on` decides that, before `apply`.
    """

    def probe(self, home: Path) -> tuple[str | None, str]:
        """How this driver works below `home`, or None when it does not; and why."""

    def on(self, plan: WorkspacePlan, layers: tuple[str, ...]) -> WorkspacePlan:
        """The plan, on these layers and with a new upper layer. Pure."""

    def prepare(self, plan: WorkspacePlan) -> None:
        """Makes the upper layer, empty; fine when it is there."""

    def tools(self, plan: WorkspacePlan) -> str:
        """A directory of programs that must come first in the view; empty when none must."""

    def view(self, plan: WorkspacePlan) -> View:
        """How the workspace is shown at the project's own path. Makes it fit to be mounted."""

    def seal(self, plan: WorkspacePlan, *, busy: bool) -> Sealed:
        """Holds this moment fast. `busy` says that something may still have files open, which is
        frozen meanwhile; otherwise nothing uses the view.
        """

    def discard(self, plan: WorkspacePlan, *, home: Path) -> None:
        """Throws an upper layer away that nothing needs; fine when there is none."""

    def is_untouched(self, plan: WorkspacePlan) -> bool:
        """Whether nothing was written since the upper layer was begun; False when in doubt."""

    def is_pristine(self, plan: WorkspacePlan) -> bool:
        """Whether the workspace is as it was made, by a look that needs no view; False when in
        doubt.
        """

    def put_back(self, plan: WorkspacePlan, aside: Path) -> None:
        """Brings files that `save` kept beside a recovery point into a fresh workspace, which has
        no view at this moment.
        """

    def place(self, plan: WorkspacePlan) -> Path | None:
        """Where the workspace can be opened without its view; None when it cannot."""

    def tip(self, plan: WorkspacePlan) -> str | None:
        """The commit that the branch stands at, if a single file says so."""

    def bring(self, plan: WorkspacePlan, *, everything: bool) -> BroughtOut | None:
        """Takes the commits of the branch into the owner's repository, through a quarantine, with
        the Git LFS objects and commits of submodules that they refer to; with `everything` the
        uncommitted rest, too, as a commit on top. None when there is no branch. Moves no branch.
        Raises StateError when it is refused.
        """

    def commit(self, plan: WorkspacePlan, message: str, author: Author) -> Committed:
        """Makes a commit of all files on top of the branch, in the owner's repository. Moves no
        ref. Raises StateError when HEAD is not on the branch or nothing has changed.
        """

    def has_hook(self, plan: WorkspacePlan, name: str) -> bool:
        """Whether a commit in the workspace would run the hook `name`, as far as files say."""

    def diff_since(self, plan: WorkspacePlan, layers: tuple[str, ...], *, stat: bool) -> Patch:
        """What differs from an earlier state of the workspace, which `layers` hold."""

    def rename(self, plan: WorkspacePlan, *, former: str) -> None:
        """Gives the branch `former` of a copy in which nothing has run yet the name that `plan`
        has for it.
        """


class IsolationDriver(Protocol):
    """Says how to start a process inside a capsule."""

    @property
    def name(self) -> str: ...

    def check(self, home: Path) -> list[Problem]:
        """What this host lacks, for capsules below `home`. Leaves nothing changed."""

    def plan(self, request: IsolationRequest) -> IsolationPlan:
        """Pure."""

    def apply(self, plan: IsolationPlan) -> None:
        """Makes the private places."""

    def release(self, plan: IsolationPlan, *, home: Path) -> None:
        """Removes them; fine when there are none."""

    def probe(self, place: Path) -> tuple[str | None, str]:
        """Builds its walls for nobody, in an empty directory: how they stand, or None; and why."""

    def visible(self, plan: IsolationPlan, owner: Mapping[str, str]) -> list[str] | None:
        """What of the host's own files processes inside see, read-only; None: all of them."""

    def furnish(self, plan: IsolationPlan, view: View, owner: Mapping[str, str]) -> View:
        """The workspace's view with what else processes inside see. Looks, changes nothing."""

    def enclosure(self, plan: IsolationPlan, owner: Mapping[str, str]) -> Enclosure:
        """How to start a process inside. `owner` is the owner's environment, of which only
        allow-listed parts are taken. Raises IsolationError when a wall cannot be built."""


class BrowserRequest(NamedTuple):
    program: str
    profile: str
    """The directory that holds everything the browser remembers."""
    url: str
    is_open: bool = False
    """Whether a window of ours has this profile open already."""


class BrowserDriver(Protocol):
    """Knows one family of browsers: finds its program and says how it is started."""

    @property
    def name(self) -> str: ...

    def find_program(self, path: str, *, avoid: str, chosen: str = "") -> str | None:
        """Its program by the directories of `path`, or `chosen` if that is there. Never one from
        below `avoid`, the project.
        """

    def check(self) -> list[Problem]:
        """What keeps this user from having a window of it. Leaves nothing changed."""

    def cure(self) -> str:
        """What installs it."""

    def plan_window(self, request: BrowserRequest) -> tuple[str, ...]:
        """The command for a window on the host, or for a tab in one that is open. Pure."""

    def is_lasting(self, path: str) -> bool:
        """Whether an entry of a profile is more than a cache or a mark of who has it open."""


class DrivenBrowser(BrowserDriver, Protocol):
    """Also runs without a window, and takes orders on a port. `dial` connects to that."""

    def plan_headless(self, request: BrowserRequest, *, port: int, cwd: str) -> tuple[str, ...]:
        """The command for inside of a capsule, where nothing else has the profile open. Pure."""

    def is_answering(self, dial: Callable[[], socket.socket]) -> bool:
        """Whether a browser takes orders there; not whose."""

    def open_page(self, dial: Callable[[], socket.socket], url: str) -> None:
        """Raises OSError when nobody who is a browser answers."""

    def close(self, dial: Callable[[], socket.socket]) -> None:
        """Has it write everything down and end, which the caller waits for. Raises OSError."""
