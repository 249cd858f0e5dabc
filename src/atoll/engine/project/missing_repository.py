"""Work of capsules whose repository is gone: stored in a stand-in, restored anywhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from atoll.drivers.layers import lfs, stand_in_repositories
from atoll.drivers.layers.pool import WORKSPACE
from atoll.engine.state.session import Session
from atoll.host import files, git, programs
from atoll.host.intake.store import open_store
from atoll.host.recovery import kept_lfs_objects, recovery_points
from atoll.host.recovery.recovery_points import Shelf
from atoll.model.errors import DriverError, StateError
from atoll.model.lfs import WITHOUT_LFS
from atoll.model.names import branch_of, printable
from atoll.model.state import CapsuleRecord, ProjectRecord, RecoveryPoint
from atoll.model.untrusted import InsidePath

_ALONE = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
"""No filter of the owner runs on files that come from a capsule."""


def gone_projects(session: Session) -> list[ProjectRecord]:
    """Projects whose repository is not there."""
    return [p for p in session.store.projects() if not os.path.isdir(p.git_dir)]


def orphans(session: Session) -> list[CapsuleRecord]:
    """Capsules whose repository is not there."""
    gone = {project.id for project in gone_projects(session)}
    return [c for c in session.store.capsules() if c.project_id in gone] if gone else []


def list_points(session: Session) -> list[RecoveryPoint]:
    """All points in stand-ins, the newest first."""
    found = [
        point._replace(repository=standin)
        for standin in stand_in_repositories.all_standins(session.home)
        for point in recovery_points.points(Shelf(standin, session.home), warn=session.warn)
    ]
    return sorted(found, key=lambda point: (point.stored_at, point.id), reverse=True)


def require_point(session: Session, text: str) -> RecoveryPoint:
    """The point with this id, or the newest of the capsule with this name."""
    found = [p for p in list_points(session) if text in (p.id, p.capsule)]
    if not found:
        raise StateError(
            f"there is no recovery point `{printable(text)}`", hint="atoll recover --gone"
        )
    return found[0]


def warn_if_unrelated(session: Session, project: ProjectRecord, point: RecoveryPoint) -> None:
    """Warns if a point belongs to an unrelated project: this one neither replaced it nor has the
    commit that the work started from.
    """
    if stand_in_repositories.stands_for(point.repository, project.git_dir):
        return
    if git.find_commit(point.base_commit, cwd=project.git_dir) is None:
        session.warn(
            f"`{point.id}` belongs to a project whose repository was deleted: its history and "
            f"files are imported into `{project.name}`\n"
            f"hint: atoll recover --gone {point.id} --to DIR"
        )


def drop(session: Session, point: RecoveryPoint) -> None:
    recovery_points.drop(Shelf(point.repository, session.home), point)
    stand_in_repositories.remove_unused(point.repository, session.home)


def adopt(session: Session, project: ProjectRecord, point: RecoveryPoint) -> RecoveryPoint:
    """Copies a point of a stand-in to the repository of a project; it stays in the stand-in."""
    _copy(point, project.git_dir)
    _copy_parts(session, point, project.git_dir, [point.commit])
    own = point._replace(repository="")
    shelf = Shelf(project.git_dir, session.home)
    with open_store(project.git_dir, scratch=session.home / "standins") as store:
        kept_lfs_objects.keep(shelf, store, own.id, own.commit, base=own.base_commit)
    recovery_points.describe(shelf, own)
    return own


def _copy(point: RecoveryPoint, repository: str) -> None:
    wanted = [point.ref]
    if point.lacks and point.files_base is not None:
        wanted.append(f"{stand_in_repositories.BASE_PREFIX}{point.files_base}")
    stand_in_repositories.copy_refs(
        point.repository, repository, [f"{ref}:{ref}" for ref in wanted]
    )


def _copy_parts(session: Session, point: RecoveryPoint, git_dir: str, tips: Sequence[str]) -> None:
    """What commits refer to without holding it; a warning names what is missing."""
    scratch = session.home / "standins"
    large = stand_in_repositories.copy_lfs_objects(point.repository, git_dir, tips, scratch=scratch)
    if large:
        warn_of_missing(session, large)
    modules = stand_in_repositories.copy_modules(point.repository, git_dir, scratch=scratch)
    if modules:
        session.warn(f"not restored: {_listed(modules)}: of submodules")


def warn_of_missing(session: Session, paths: Sequence[str]) -> None:
    """Names Git LFS files whose objects a restored point lacks."""
    session.warn(
        f"{_listed(paths)}: Git LFS pointers whose objects are neither kept with the recovery "
        "point nor in your repository; `git lfs fetch` may find them on the server"
    )


def _listed(paths: Sequence[str]) -> str:
    shown = ", ".join(f"`{printable(path)}`" for path in paths[:3])
    return f"{shown} and {len(paths) - 3} more" if len(paths) > 3 else shown


def write_checkout(session: Session, point: RecoveryPoint, directory: str) -> str:
    """Makes a repository with the history and the files of a point; returns where it is.

    Raises StateError when there is something already.
    """
    place = os.path.abspath(directory)
    if os.path.lexists(place) and (not os.path.isdir(place) or os.listdir(place)):
        raise StateError(f"`{printable(place)}` exists already", hint="choose another directory")
    is_new = not os.path.lexists(place)
    os.makedirs(place, exist_ok=True)
    try:
        _fill(session, point, place)
    except BaseException:
        for name in os.listdir(place):
            files.remove_tree(Path(place, name), within=Path(place))
        if is_new:
            os.rmdir(place)
        raise
    return place


def warn_of_heads(session: Session, left_out: Sequence[InsidePath]) -> None:
    if left_out:
        session.warn(
            f"not restored: {_listed([path.shown() for path in left_out])}: with it git takes the "
            "directory for a repository, whose settings can start programs"
        )


def _fill(session: Session, point: RecoveryPoint, place: str) -> None:
    from atoll.host.recovery import restored_files  # noqa: PLC0415 - copies: rarely needed

    kind = "sha256" if len(point.commit) > 40 else "sha1"
    git.git("init", "--quiet", f"--object-format={kind}", "--template=", place, cwd=place)
    git_dir = os.path.join(place, ".git")
    heads = ("refs/heads/*:refs/heads/*", "refs/tags/*:refs/tags/*")
    stand_in_repositories.copy_refs(point.repository, git_dir, heads)
    _copy(point, git_dir)
    tips = [commit for _, commit in git.refs_below("refs/", cwd=place)]
    _copy_parts(session, point, git_dir, tips)
    branch = f"refs/heads/{branch_of(point.capsule)}"
    git.git("update-ref", branch, point.head_commit, cwd=place)
    git.git("symbolic-ref", "HEAD", branch, cwd=place)
    _write_files(session, recovery_points.recovered_tree(point), place)
    if point.files is not None:
        restored_files.put_back(Path(point.files), Path(place), at=WORKSPACE)
    warn_of_heads(session, restored_files.remove_bare_heads(Path(place)))
    git.git("read-tree", point.index_commit or point.head_commit, cwd=place, env=_ALONE)


def _write_files(session: Session, tree: str, place: str) -> None:
    """Git LFS files get their content from the new repository; no server is asked."""
    words = ("read-tree", "-u", "--reset", tree)
    if not os.path.isdir(os.path.join(place, ".git", "lfs")):
        git.git(*words, cwd=place, env=_ALONE)
    elif programs.find_program("git-lfs") is None:
        git.git(*words, cwd=place, env=_ALONE)
        session.warn("git-lfs is not installed: its files are pointers\nhint: git lfs checkout")
    else:
        if not git.setting("filter.lfs.process", cwd=place):
            for key, value in lfs.FILTER:
                git.git("config", key, value, cwd=place)
        try:
            git.git(*lfs.filter_options(), *words, cwd=place, env=_ALONE)
        except DriverError as error:
            if not lfs.is_at_fault(error.message):
                raise
            git.git(*WITHOUT_LFS, *words, cwd=place, env=_ALONE)
            session.warn("git-lfs failed: its files are pointers\nhint: git lfs checkout")
