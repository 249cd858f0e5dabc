"""Whether a path may be a project: the owner's own, and no workspace of a capsule."""

from __future__ import annotations

import os
from pathlib import Path

from atoll.engine.state.session import Session
from atoll.host import files
from atoll.host.programs import is_below
from atoll.model.errors import SpecError, StateError
from atoll.model.names import printable

CLONES = "repositories"
"""Below Atoll's home: clones of repositories that were given by URL."""


def require_owners(session: Session, path: str) -> None:
    """Refuses directories that an agent can write, before git reads them: a repository in there
    would be the agent's, with its settings and programs.
    """
    real = os.path.realpath(path)
    try:
        is_here = os.path.samestat(os.stat(path), os.stat(real))
    except OSError:
        # A missing directory is reported when the checkout is looked up.
        is_here = not os.path.exists(path)
    homes = [place for place in (Path(real), *Path(real).parents) if _is_home(session, place)]
    if is_here and (not homes or is_clone(real, homes[0])):
        return
    if is_here and _is_worktree(session, Path(real), homes[0]):
        return
    raise StateError(
        f"`{printable(path)}` is the workspace of a capsule, not a project",
        hint="cd to the project itself",
    )


def is_clone(path: str, home: Path) -> bool:
    """Whether a path is in a repository that Atoll cloned, where no capsule can write."""
    return is_below(path, [os.path.realpath(home / CLONES)])


def _is_home(session: Session, place: Path) -> bool:
    if place == Path(os.path.realpath(session.home)):
        return True
    return (place / "state.db").is_file() and (place / "pools").is_dir()


def _is_worktree(session: Session, path: Path, home: Path) -> bool:
    """Whether a path in an Atoll home is in a worktree of a project's own repository."""
    repositories = [os.path.realpath(project.git_dir) for project in session.store.projects()]
    for place in (path, *path.parents):
        if place == home:
            return False
        if not os.path.lexists(place / ".git"):
            continue
        pointer = files.read_beneath(place, ".git", limit_bytes=1 << 16) or b""
        named = Path(os.fsdecode(pointer.removeprefix(b"gitdir: ").rstrip(b"\n")))
        owner = os.path.realpath(named.parent.parent)
        return named.parent.name == "worktrees" and owner in repositories
    return False


def nearest_checkout(path: str) -> list[Path]:
    real = Path(os.path.realpath(path))
    return [place for place in (real, *real.parents) if os.path.lexists(place / ".git")][:1]


def require_text(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise SpecError(
            f"the path `{os.fsencode(path).decode('ascii', 'backslashreplace')}` is not UTF-8",
            hint="rename the directory",
        ) from error
