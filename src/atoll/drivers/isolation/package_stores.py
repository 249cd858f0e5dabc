"""Which of the owner's package stores a capsule sees, and where (`atoll.model.package_stores`).

They are found by the tools' own variables and default places; nothing is read from a project. A
variable that names a private directory, a project, Atoll's home or a directory that contains one of
these shares nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from atoll.drivers.isolation.hidden_paths import NeverShown
from atoll.host.programs import is_below, untrusted_roots
from atoll.model.package_stores import PACKAGE_STORES, PackageStore

_XDG = ((".cache/", "XDG_CACHE_HOME"), (".local/share/", "XDG_DATA_HOME"))
_AROUND = (".cache", ".m2", ".gradle", ".cargo/registry")
"""Private directories that contain stores; only the stores in them are shown."""
_NOWHERE = ("/proc", "/sys", "/dev", "/etc", "/boot", "/run", "/var")


class FoundStore(NamedTuple):
    store: PackageStore
    at: str
    """Where a capsule sees it."""
    source: str
    """The owner's, without links; empty where there is none."""


def variables_of(stores: Iterable[FoundStore]) -> dict[str, str]:
    """What the tools of these stores need to know inside."""
    variables = {}
    for store, at, source in stores:
        if source and store.variable and not at.endswith(f"/{store.below_home}"):
            variables[store.variable] = at
        if source:
            variables |= dict(store.settings)
    return variables


def find_stores(
    owner: Mapping[str, str], *, home: str, workspace: str, roots: Sequence[str]
) -> list[FoundStore]:
    """All known stores. `home` is HOME inside; nothing below `roots` is shared: these are the
    project, workspaces and Atoll's home.
    """
    refuse = _Refusals(owner, roots)
    found = []
    for store in PACKAGE_STORES:
        at, source = f"{home}/{store.below_home}", ""
        for place in _places(store, owner, workspace):
            resolved = os.path.realpath(place.path)
            if place.is_guessed and resolved != place.path:
                # A link there may belong to another user, or come with a clone.
                continue
            if not _is_own_directory(resolved) or refuse.is_refused(place, resolved):
                continue
            is_free = place.is_kept and not is_below(place.path, _NOWHERE)
            if is_free and not refuse.is_refused(place, place.path):
                at = place.path
            source = resolved
            break
        found.append(FoundStore(store, at, source))
    return found


def usual_paths(owner: Mapping[str, str]) -> list[str]:
    """Where the owner's tools have their stores, or will make them."""
    found = []
    for store in PACKAGE_STORES:
        named = [owner.get(store.variable, "")] if store.variable else []
        named += [f"{owner[key]}/{suffix}" for key, suffix in store.roots if owner.get(key)]
        found += [os.path.normpath(path) for path in named if os.path.isabs(path)]
        found += _usual_places(store, owner)
    return found


class _Place(NamedTuple):
    path: str
    is_kept: bool = False
    """A capsule sees the store at the same path."""
    is_usual: bool = False
    """Only this tool has files there, so it may be in a cache directory."""
    is_default: bool = False
    """Below HOME, and not set by a variable."""
    is_guessed: bool = False
    """Derived from the project's path: others may be able to write there."""


class _Refusals:
    """Decides whether a directory may be shared. The list of private places is long, and every run
    asks: it is resolved only for what is not simply at its default place.
    """

    def __init__(self, owner: Mapping[str, str], roots: Sequence[str]) -> None:
        self._owner = owner
        self._roots = roots
        self._resolved_roots = [*roots, *map(os.path.realpath, roots), *untrusted_roots()]

    def is_refused(self, place: _Place, resolved: str) -> bool:
        if is_below(place.path, self._resolved_roots):
            # Also if a link in a project points outside of it.
            return True
        if place.is_default and resolved == place.path:
            # Only the tool has files there.
            return any(
                is_below(resolved, [root]) or is_below(root, [resolved])
                for root in self._resolved_roots
            )
        never = self._around if place.is_usual else self._private
        return never.why(resolved) is not None

    @cached_property
    def _private(self) -> NeverShown:
        return NeverShown(self._owner, self._roots)

    @cached_property
    def _around(self) -> NeverShown:
        return NeverShown(self._owner, self._roots, around_stores=_AROUND)


def _places(store: PackageStore, owner: Mapping[str, str], workspace: str) -> Iterator[_Place]:
    """Where the owner's tool looks, in its order."""
    usual = _usual_places(store, owner)
    named = owner.get(store.variable, "") if store.variable else ""
    if os.path.isabs(named):
        path = os.path.normpath(named)
        yield _Place(path, is_kept=True, is_usual=path in usual)
        return
    for variable, suffix in store.roots:
        # GOPATH is a list.
        root = owner.get(variable, "").split(":")[0]
        if os.path.isabs(root):
            path = f"{os.path.normpath(root)}/{suffix}"
            is_usual = path in usual or variable == "CARGO_HOME"
            yield _Place(path, is_kept=store.is_path_recorded, is_usual=is_usual)
    if store.is_path_recorded:
        for path in _beside_project(owner, workspace):
            yield _Place(path, is_kept=True, is_guessed=True)
    default = _default_place(store, owner)
    for path in usual:
        is_default = path == default
        yield _Place(path, store.is_path_recorded, is_usual=True, is_default=is_default)


def _usual_places(store: PackageStore, owner: Mapping[str, str]) -> list[str]:
    """Below the directory that an XDG variable names, and below HOME."""
    found = []
    for prefix, variable in _XDG:
        base = owner.get(variable, "")
        if store.below_home.startswith(prefix) and os.path.isabs(base):
            found.append(f"{os.path.normpath(base)}/{store.below_home.removeprefix(prefix)}")
    default = _default_place(store, owner)
    return [*found, default] if default else found


def _default_place(store: PackageStore, owner: Mapping[str, str]) -> str:
    home = owner.get("HOME", "")
    return f"{os.path.normpath(home)}/{store.below_home}" if os.path.isabs(home) else ""


def _beside_project(owner: Mapping[str, str], workspace: str) -> Iterator[str]:
    """Where pnpm has its store for a project on another filesystem than HOME.

    `node_modules` records the store's path, and pnpm refuses to continue with another one.
    """
    try:
        device = os.stat(workspace).st_dev
        if os.stat(owner.get("HOME", "/")).st_dev == device:
            return
        top = workspace
        while top != "/" and os.stat(os.path.dirname(top)).st_dev == device:
            top = os.path.dirname(top)
    except OSError:
        return
    yield os.path.join(top, ".pnpm-store")


def _is_own_directory(place: str) -> bool:
    """Another user's could be changed by that user, and hold what the owner never downloaded."""
    try:
        status = os.stat(place)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
