"""A session: an open Atoll home with its store, locks and listeners, for one command or one library
user. Only the store and the locks are shared between processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from atoll.engine.state import database
from atoll.engine.state.ref_cache import RefCache
from atoll.engine.state.store import Store
from atoll.host import disk_space, files, locks, programs
from atoll.host.forkserver import ForkServer
from atoll.model.errors import StateError
from atoll.model.state import CapsuleRecord

STEPS: dict[str, tuple[str, ...]] = {
    "new": ("planned", "frozen", "leased", "workspace", "isolation", "setup", "ready"),
    "run": ("leased", "prepared", "launched", "ended", "recorded"),
    "export": ("brought", "announced", "moved"),
    "snapshot": ("sealed", "recorded"),
    "rollback": ("sealed", "prepared", "recorded"),
    "fork": ("leased", "prepared", "renamed", "ready"),
    "check": ("observed", "stored"),
    "race": ("stored", "starting", "made", "launched", "running", "ended", "kept", "recorded",
             "checked", "finished"),
    "rm": ("announced", "stopped", "saved", "isolation", "workspace", "files", "forgotten"),
    "promote": ("stored", "verified", "brought", "accepted", "journalled", "noted", "prepared",
                "files", "indexed", "landed", "recorded", "running", "ran", "healthy", "passed"),
    "undo": ("running", "ran", "journalled", "noted", "prepared", "files", "indexed", "landed",
             "recorded", "undone"),
}  # fmt: skip
"""The steps of each verb, for progress reports and for fault injection."""

Listener = Callable[[str, str], None]
"""Called with `verb.step` and its subject, after each step."""


Warn = Callable[[str], None]
"""Called with the text of a warning."""


def _silent(step: str, subject: str) -> None:
    del step, subject


def _warn(text: str) -> None:
    import warnings  # noqa: PLC0415 - only for library users without a listener

    warnings.warn(text, stacklevel=3)


class Session:
    """Created by `open_session`."""

    def __init__(
        self,
        *,
        home: Path,
        store: Store,
        owner: Mapping[str, str] | None = None,
        listen: Listener | None = None,
        warn: Warn | None = None,
        background: bool = True,
    ) -> None:
        self.home = home
        self.store = store
        self.read_only = store.read_only
        distrust_projects(home, store)
        self.owner = os.environ if owner is None else owner
        self.listen = listen or _silent
        self.warn = warn or _warn
        self.forkserver = ForkServer(f"{home}/")
        self.ref_cache = RefCache()
        self.background = background
        """Whether background processes may outlive a command: upkeep, for which the command waits
        otherwise, and the daemon, without which no connection leaves a capsule.
        """
        self.is_detached = False
        """Whether this process goes on where a command of the owner's has ended, without their
        environment.
        """
        self.ask_passphrase: Callable[[], str] | None = None
        """Asks the owner for the passphrase of the vault; None without a terminal."""

    def reach(self, step: str, subject: str) -> None:
        verb, _, name = step.partition(".")
        assert name in STEPS[verb], step  # noqa: S101 - a step that no fault test would try
        self.listen(step, subject)

    def lock_of(self, capsule: CapsuleRecord) -> locks.Lock:
        return self.capsule_lock(capsule.project_id, capsule.name)

    def capsule_lock(self, project_id: str, name: str) -> locks.Lock:
        return locks.Lock(self.home / "locks" / f"{project_id}.{name}")

    def view_lock(self, capsule: CapsuleRecord) -> locks.Lock:
        return locks.Lock(self.home / "locks" / f"view-{capsule.id}")

    def upkeep_lock(self) -> locks.Lock:
        return locks.Lock(self.home / "locks" / "upkeep")

    def run_lock(self, token: str) -> locks.Lock:
        return locks.Lock(self.home / "locks" / f"run-{token}")

    def temporary_lock(self, token: str) -> locks.Lock:
        """Held by the command that made capsules for itself."""
        return locks.Lock(self.home / "locks" / f"temporary-{token}")

    def check_lock(self, project_id: str, tree: str, digest: str) -> locks.Lock:
        """Held while a check runs on a tree, so that nothing is checked twice at once."""
        return locks.Lock(self.home / "locks" / f"check-{project_id}-{tree}-{digest}")

    def race_lock(self, race_id: int) -> locks.Lock:
        """Held by the process that carries a race on."""
        return locks.Lock(self.home / "locks" / f"race-{race_id}")

    def promotion_lock(self, project_id: str) -> locks.Lock:
        """Held by the command that promotes work of a project, or takes a promotion back."""
        return locks.Lock(self.home / "locks" / f"promotion-{project_id}")

    def pool(self, project_id: str) -> Path:
        return self.home / "pools" / project_id

    def capsule_directory(self, project_id: str, name: str) -> Path:
        return self.home / "projects" / project_id / name


def distrust_projects(home: Path, store: Store) -> None:
    """Excludes Atoll's home and all projects from the places of host programs and toolchains.

    A project that contains the owner's whole home, such as one of dotfiles, is not excluded here:
    other projects could use none of the owner's tools. It is excluded while it is itself in use.
    """
    own = os.path.expanduser("~")
    roots = [project.root for project in store.projects()]
    programs.distrust([home, *(r for r in roots if not programs.is_below(own, [r]))])


def home_path(owner: Mapping[str, str]) -> Path:
    """`ATOLL_HOME`, or `atoll` in the XDG data directory."""
    if chosen := owner.get("ATOLL_HOME"):
        return Path(chosen).absolute()
    data = owner.get("XDG_DATA_HOME")
    return (Path(data) if data else Path("~/.local/share").expanduser()) / "atoll"


def make_room(*, everything: bool) -> None:
    """Releases half of the disk reserve on a full disk, for a command that may free space.

    With `everything` also the second half, if the first is not enough to change the database: only
    for commands that remove. Processes in capsules could use up the released space.
    """
    disk_space.Reserve(home_path(os.environ)).release(everything=everything)


def find_session(home: Path) -> Session | None:
    """For a background process, which must not create a home that was removed meanwhile."""
    return open_session(home=home, warn=ignore) if (home / database.NAME).exists() else None


def ignore(text: str) -> None:
    del text


def open_session(
    *,
    home: Path | None = None,
    listen: Listener | None = None,
    warn: Warn | None = None,
    background: bool = True,
) -> Session:
    """Raises PrerequisiteError when the home cannot be used, StateError when its state cannot."""
    place = home if home is not None else home_path(os.environ)
    if home is None and os.environ.get("ATOLL_CAPSULE") and not os.environ.get("ATOLL_HOME"):
        # Its home would be in the capsule's private home and be removed with the capsule.
        raise StateError(
            f"this is inside the capsule `{os.environ['ATOLL_CAPSULE']}`",
            hint="use atoll from outside of it",
        )
    read_only = disk_space.is_read_only(place)
    files.require_own_directory(place, writable=not read_only)
    if not read_only:
        # Fails on a full disk, before the command has released the reserve.
        with suppress(OSError):
            files.make_private_directory(place / "locks")
        disk_space.Reserve(place).ensure()
    store = Store(place, read_only=read_only)
    return Session(home=place, store=store, listen=listen, warn=warn, background=background)
