"""What a new capsule does not contain of the owner's checkout."""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

from atoll.drivers.layers.carry_selection import SUBMODULE, UNREADABLE, dirty_paths
from atoll.drivers.layers.dependency_layers import load_carried
from atoll.drivers.layers.pool import Pool
from atoll.engine.state.session import Session
from atoll.host import git
from atoll.model import secretfiles
from atoll.model.errors import AtollError
from atoll.model.plan import CapsulePlan
from atoll.model.state import ProjectRecord

_FIELDS = {"1": 8, "u": 10}
"""How many fields are before the path in an entry for a tracked file, by its kind."""


class Excluded(NamedTuple):
    """Paths from the checkout's root; a directory that is untracked as a whole ends with `/`."""

    uncommitted: tuple[str, ...] = ()
    """Changed, removed and untracked files that only `--dirty` includes."""
    secrets: tuple[str, ...] = ()
    """Files that look like secrets, which only `project.carry` includes."""
    untracked_secrets: tuple[str, ...] = ()
    """Those of the secrets that git does not ignore: they need `--dirty` besides."""
    unreadable: tuple[str, ...] = ()
    submodules: tuple[str, ...] = ()
    """Submodules with changes, or with another commit than the project records."""
    carry: tuple[str, ...] | None = None
    """What `project.carry` lists now."""


class ExcludedQuery:
    """Queries git about a checkout while the capsule is being created.

    Git checks every tracked file, which takes about as long as `new` itself.
    """

    def __init__(self, session: Session, project: ProjectRecord, plan: CapsulePlan) -> None:
        self._session = session
        self._project = project
        self._plan = plan
        self._listed: list[tuple[str, str]] = []
        self._failure: AtollError | None = None
        self._thread = threading.Thread(target=self._ask, daemon=True)
        if plan.workspace.is_layered:
            self._thread.start()

    def answer(self) -> Excluded:
        """Waits for git; for when the capsule has been made."""
        if not self._plan.workspace.is_layered:
            return Excluded()
        self._thread.join()
        if self._failure is not None:
            self._session.warn(f"cannot determine what was left out: {self._failure.message}")
            return Excluded()
        carried = load_carried(Pool(self._plan.workspace.pool))
        entries = [] if carried is None else list(carried.left_out)
        dependencies = () if carried is None else carried.unignored
        loose = [path for path, reason in self._listed if reason in secretfiles.REASONS]
        secrets = [entry.path for entry in entries if entry.reason in secretfiles.REASONS]
        closed = [path for path, reason in (*entries, *self._listed) if reason == UNREADABLE]
        return Excluded(
            uncommitted=tuple(
                path
                for path, reason in self._listed
                if not reason and path.rstrip("/") not in dependencies
            ),
            secrets=tuple(sorted({*secrets, *loose}, key=_nearest_first)),
            untracked_secrets=tuple(sorted(loose, key=_nearest_first)),
            unreadable=tuple(sorted(set(closed), key=_nearest_first)),
            submodules=tuple(path for path, reason in self._listed if reason == SUBMODULE),
            carry=self._plan.selection.carry,
        )

    def _ask(self) -> None:
        try:
            self._listed = self._dirty() if self._plan.selection.dirty else self._changed()
        except AtollError as error:
            self._failure = error

    def _changed(self) -> list[tuple[str, str]]:
        """Paths that differ from HEAD, each with the reason if `--dirty` does not include it."""
        answer = git.git(
            "--no-optional-locks", "status", "--porcelain=v2", "-z", "--no-renames",
            "--untracked-files=normal", "--ignore-submodules=none",
            cwd=self._project.root,
        )  # fmt: skip
        found = []
        for entry in filter(None, answer.text.split("\0")):
            kind, path, is_submodule = _parse_status(entry)
            if kind == "#":
                # The number of stashes, if `status.showStash` is set.
                continue
            if is_submodule:
                found.append((path, SUBMODULE))
                continue
            if path.endswith("/") and os.path.lexists(f"{self._project.root}/{path}.git"):
                # A nested repository, or a worktree: `--dirty` does not include it either.
                continue
            name = path.rpartition("/")[2]
            is_loose = kind == "?" and bool(name)
            found.append((path, (secretfiles.looks_secret(name) or "") if is_loose else ""))
        return found

    def _dirty(self) -> list[tuple[str, str]]:
        """What `--dirty` does not include, with the reason."""
        plan = self._plan
        home = str(Pool(plan.workspace.pool).root.parents[1])
        found = dirty_paths(
            self._project.root,
            plan.base_commit,
            carry=plan.selection.carry,
            never=plan.selection.never,
            home=home,
        )
        reasons = {*secretfiles.REASONS, UNREADABLE, SUBMODULE}
        return [(entry.path, entry.reason) for entry in found.left_out if entry.reason in reasons]


def _parse_status(entry: str) -> tuple[str, str, bool]:
    """The kind, the path, and whether it is a submodule, of an entry of `--porcelain=v2`."""
    kind = entry[:1]
    if kind not in _FIELDS:
        return kind, entry[2:], False
    fields = entry.split(" ", _FIELDS[kind])
    return kind, fields[-1], fields[2].startswith("S")


def _nearest_first(path: str) -> tuple[int, str]:
    """A file at the top of the project means more to its owner than one deep in a dependency."""
    return path.count("/"), path
