"""A cache of the refs and the identity of the owner's repository, valid while the files that have
them are unchanged.

Git runs again when the stat of a file differs, or when a file is so recent that a later change
might not show in its stat.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar, cast

from atoll.drivers.layers.repository import load_refs
from atoll.host import git
from atoll.model.plan import Refs
from atoll.model.state import ProjectRecord

_MANY = 2_000
"""For a repository with more loose refs than this nothing is cached."""
_TICK_NS = 50_000_000
"""Two changes within this time may have the same time stamp."""

T = TypeVar("T")
Stamp = tuple[str, int, int, int]


class _Known(NamedTuple):
    stamps: list[Stamp]
    answer: object


class RefCache:
    """Belongs to a session. Threads may use it without a lock: at worst git runs twice."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Known] = {}

    def refs(self, project: ProjectRecord) -> Refs:
        places = [project.git_dir, os.path.join(project.root, ".git")]
        return self._ask("refs", project, _ref_files(places), lambda: load_refs(project.root))

    def identity(self, project: ProjectRecord) -> tuple[str, str]:
        files = _setting_files(project.git_dir)
        if any(_includes(path) for path in files):
            return git.identity(cwd=project.root)
        return self._ask("identity", project, files, lambda: git.identity(cwd=project.root))

    def _ask(
        self, what: str, project: ProjectRecord, paths: list[str] | None, ask: Callable[[], T]
    ) -> T:
        if paths is None:
            return ask()
        key = (what, project.root)
        stamps = [_stamp(path) for path in paths]
        known = self._known.get(key)
        if known is not None and known.stamps == stamps:
            return cast("T", known.answer)
        began_ns = time.time_ns()
        answer = ask()
        if all(stamp[1] < began_ns - _TICK_NS for stamp in stamps):
            self._known[key] = _Known(stamps, answer)
        return answer


def _stamp(path: str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return (path, 0, 0, 0)
    return (path, status.st_mtime_ns, status.st_size, status.st_ino)


def _ref_files(places: list[str]) -> list[str] | None:
    """The files and directories that hold the refs of a repository; None if they are too many."""
    found = [os.path.join(place, name) for place in places for name in ("HEAD", "packed-refs")]
    for path in _walk(os.path.join(places[0], "refs")):
        found.append(path)
        if len(found) > _MANY:
            return None
    return found


def _walk(directory: str) -> Iterator[str]:
    yield directory
    try:
        with os.scandir(directory) as entries:
            listed = list(entries)
    except OSError:
        return
    for entry in listed:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        else:
            yield entry.path


def _setting_files(repository: str) -> list[str]:
    general = os.environ.get("GIT_CONFIG_GLOBAL")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    own = [general] if general else [os.path.expanduser("~/.gitconfig"), f"{config}/git/config"]
    machine = [] if os.environ.get("GIT_CONFIG_NOSYSTEM") else ["/etc/gitconfig"]
    return [f"{repository}/config", f"{repository}/config.worktree", *own, *machine]


def _includes(path: str) -> bool:
    """Whether a file includes other files, whose changes its own stamp does not show."""
    try:
        with open(path, "rb") as stream:
            return b"[include" in stream.read(1 << 20).lower()
    except OSError:
        return False
