"""One command's, or one library user's, view of an Atoll home: where it is, its state, who listens.

Nothing here is shared between processes but the store and the locks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from atoll.engine import database
from atoll.engine.acquaintance import Acquaintance
from atoll.engine.store import Store
from atoll.host import files, locks, programs, space
from atoll.host.nursery import Nursery
from atoll.model.errors import StateError
from atoll.model.state import Capsule

STEPS: dict[str, tuple[str, ...]] = {
    "new": ("planned", "frozen", "leased", "workspace", "isolation", "setup", "ready"),
    "run": ("leased", "prepared", "launched", "ended", "recorded"),
    "export": ("brought", "announced", "moved"),
    "snapshot": ("sealed", "recorded"),
    "rollback": ("sealed", "prepared", "recorded"),
    "fork": ("leased", "prepared", "renamed", "ready"),
    "rm": ("announced", "stopped", "saved", "isolation", "workspace", "files", "forgotten"),
}
"""Every step between which a crash can fall: progress is told and faults are tried here."""

Listener = Callable[[str, str], None]
"""Hears (`verb.step` just reached, what it was about)."""


Warn = Callable[[str], None]
"""Hears what could not be put right, and goes on without it."""


def _silent(step: str, subject: str) -> None:
    del step, subject


def _warn(text: str) -> None:
    import warnings  # noqa: PLC0415 - for library users who gave no listener

    warnings.warn(text, stacklevel=3)


class Session:
    """Made by `open_session`."""

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
        self.nursery = Nursery(f"{home}/")
        self.acquaintance = Acquaintance()
        self.background = background
        """Whether anything may go on after a command: upkeep, for which the command waits
        otherwise, and the daemon, without which nothing gets out of a capsule.
        """

    def reach(self, step: str, subject: str) -> None:
        verb, _, name = step.partition(".")
        assert name in STEPS[verb], step  # noqa: S101 - a step that no fault test would try
        self.listen(step, subject)

    def lock_of(self, capsule: Capsule) -> locks.Lock:
        return self.capsule_lock(capsule.project_id, capsule.name)

    def capsule_lock(self, project_id: str, name: str) -> locks.Lock:
        return locks.Lock(self.home / "locks" / f"{project_id}.{name}")

    def view_lock(self, capsule: Capsule) -> locks.Lock:
        return locks.Lock(self.home / "locks" / f"view-{capsule.id}")

    def upkeep_lock(self) -> locks.Lock:
        return locks.Lock(self.home / "locks" / "upkeep")

    def run_lock(self, token: str) -> locks.Lock:
        return locks.Lock(self.home / "locks" / f"run-{token}")

    def pool(self, project_id: str) -> Path:
        return self.home / "pools" / project_id

    def capsule_directory(self, project_id: str, name: str) -> Path:
        return self.home / "projects" / project_id / name


def distrust_projects(home: Path, store: Store) -> None:
    """Nothing of Atoll's home or of a project is started on the host or shown as a toolchain.

    A project that holds the owner's whole home, such as one of settings files, would take all of
    the owner's tools away from the others; it counts when it is the project that is worked on.
    """
    own = os.path.expanduser("~")
    roots = [project.root for project in store.projects()]
    programs.distrust([home, *(r for r in roots if not programs.is_below(own, [r]))])


def home_path(owner: Mapping[str, str]) -> Path:
    """`ATOLL_HOME`, or the place where the XDG rules put an application's data."""
    if chosen := owner.get("ATOLL_HOME"):
        return Path(chosen).absolute()
    data = owner.get("XDG_DATA_HOME")
    return (Path(data) if data else Path("~/.local/share").expanduser()) / "atoll"


def find_shortage(path: object = None) -> space.Shortage | None:
    """What is used up where a path lies, or in Atoll's home."""
    named = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    return space.find_shortage(Path(named) if named else home_path(os.environ))


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that there is no room somewhere."""
    return space.is_shortage(error)


def make_room(*, everything: bool) -> None:
    """Releases the reserve on a full disk, for a command that frees room or may do so.

    With `everything` also the second half, where the first one does not suffice to change the
    database: for commands that only remove. What runs in a capsule could use up all of it.
    """
    space.Reserve(home_path(os.environ)).release(everything=everything)


def find_session(home: Path) -> Session | None:
    """For a process that goes on after a command: where the home was removed meanwhile, it makes
    no new one.
    """
    return open_session(home=home, warn=_ignore) if (home / database.NAME).exists() else None


def _ignore(text: str) -> None:
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
        # Its home would be the capsule's private one, and would go with the capsule.
        raise StateError(
            f"this is inside the capsule `{os.environ['ATOLL_CAPSULE']}`",
            hint="use atoll from outside of it",
        )
    read_only = space.is_read_only(place)
    files.require_own_directory(place, writable=not read_only)
    if not read_only:
        # On a full disk the reserve has to be released first, by those verbs that do.
        with suppress(OSError):
            files.make_private_directory(place / "locks")
        space.Reserve(place).ensure()
    store = Store(place, read_only=read_only)
    return Session(home=place, store=store, listen=listen, warn=warn, background=background)
