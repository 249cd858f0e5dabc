"""Saves work that exists only in a workspace before the workspace is removed.

A recovery point is a commit under `refs/atoll/recovery/`: its tree has all files, including
untracked ones; its first parent is HEAD, its last parent the index if that differs. What git cannot
store (nested repositories, unreadable files, a workspace whose repository was destroyed) is saved
as plain files.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers import stand_in_repositories
from atoll.drivers.workspace import submodules
from atoll.drivers.workspace.file_status import GITLINK, FileStatus, WorkspaceFiles
from atoll.drivers.workspace.unique_work import (
    UNREADABLE,
    Examined,
    Site,
    examined,
    find_work,
    staged_only,
)
from atoll.host import disk_space, files, git
from atoll.host.intake import commits, comparison, workspace_tree
from atoll.host.intake.blob_filters import tracked_below
from atoll.host.intake.store import IntakeRepository, open_store
from atoll.host.intake.tree_objects import TreeEntry
from atoll.host.recovery import kept_lfs_objects, recovery_points
from atoll.host.recovery.recovery_points import PREFIX, Shelf
from atoll.model.errors import AtollError, DriverError, PrerequisiteError, StateError
from atoll.model.names import printable
from atoll.model.state import RecoveryPoint
from atoll.model.untrusted import InsidePath, ObjectId

NAME, ADDRESS = "Atoll", "atoll@localhost"
_ATTEMPTS = 3
"""How many attempts are made to store everything in git before files are saved beside the point."""
_REASON_CHARS = 300
_MOST_STASHES = 100
"""The number of paths that are listed; all of them are stored."""


def save(site: Site, *, point: str, base: str, home: Path) -> RecoveryPoint | None:
    """`base` is the commit that the capsule started from."""
    plan = site.plan
    shelf = Shelf(plan.repository, home)
    if not site.is_there():
        work = find_work(site)
        if not work.any:
            return recovery_points.find_point(shelf, point)
        return _note(site, shelf, _Kept(point, base, site.committed))
    trouble: Exception | None = None
    for number in range(_ATTEMPTS):
        try:
            return _save_examined(site, shelf, point, base, is_last=number == _ATTEMPTS - 1)
        except _AnotherAttemptError:
            continue
        except UNREADABLE as error:
            if plan.is_layered and disk_space.has_shortage_code(error):
                # A copy of the files would need as much space.
                _remove_partial(shelf.files_of(point))
                raise
            trouble = error
            if not isinstance(error, (DriverError, OSError)):
                break
    # Not even the root can be opened: everything is saved as files.
    kept = _Kept(point, base, site.committed or [plan.base_commit])
    return _note_with_files(site, shelf, kept._replace(lacks=_reason(trouble)))


class _AnotherAttemptError(Exception):
    """A tool was killed or a file was changed meanwhile: another attempt may succeed."""


def _save_examined(
    site: Site, shelf: Shelf, point: str, base: str, *, is_last: bool
) -> RecoveryPoint | None:
    plan = site.plan
    with examined(site) as it:
        if not it.work.any:
            return recovery_points.find_point(shelf, point)
        tree, trouble = _find_tree(it, is_copied=plan.is_layered)
        changed = it.work.uncommitted or it.work.untracked
        staged = None if tree is None else _find_staged(site, it)
        is_staged_lost = staged is None and tree is not None and _has_staged(site, it)
        # A merge in progress has no tree, however often it is tried.
        is_merging = any(entry.stage for entry in site.staged(it.workspace) or ())
        is_failed = (tree is None and it.survey is not None) or (is_staged_lost and not is_merging)
        if not is_last and (it.may_pass or is_failed):
            raise _AnotherAttemptError
        is_lacking = tree is None and bool(changed or it.work.needs_files)
        tips = [*(it.taken.tips if it.taken is not None else ()), *site.committed]
        kept = _Kept(
            point=point,
            base=base,
            tips=list(dict.fromkeys(tips)) or [plan.base_commit],
            tree=tree,
            store=it.store,
            workspace=it.workspace,
            staged=staged,
            lacks=_reason(trouble) if is_lacking else "",
            stashes=() if it.taken is None else it.taken.stashes[:_MOST_STASHES],
        )
        if it.work.needs_files or is_staged_lost or is_lacking:
            return _note_with_files(site, shelf, kept)
        return _note(site, shelf, kept)


def _reason(trouble: Exception | None) -> str:
    if trouble is None:
        return "its repository has been replaced"
    message = trouble.message if isinstance(trouble, AtollError) else str(trouble)
    first = message.splitlines()[0] if message else type(trouble).__name__
    # Options that every git command of Atoll gets are left out.
    return printable(re.sub(r" -c \S+", "", first))[:_REASON_CHARS]


class _Kept(NamedTuple):
    """The contents of a recovery point."""

    point: str
    base: str
    tips: list[str]
    tree: ObjectId | None = None
    store: IntakeRepository | None = None
    workspace: WorkspaceFiles | None = None
    staged: ObjectId | None = None
    lacks: str = ""
    stashes: tuple[str, ...] = ()


def _find_tree(it: Examined, *, is_copied: bool) -> tuple[ObjectId | None, Exception | None]:
    """The files as a tree; or None and the reason if git cannot store them: then they are saved as
    files.
    """
    if it.survey is None:
        if is_copied and it.trouble is not None and disk_space.has_shortage_code(it.trouble):
            raise it.trouble
        return None, it.trouble
    try:
        return write_files(it), None
    except (StateError, DriverError, PrerequisiteError, OSError) as error:
        if is_copied and disk_space.is_shortage(error):
            raise
        return None, error


def write_files(it: Examined) -> ObjectId:
    """Writes all files that are not ignored as a tree, with submodules at their current commits.
    Raises StateError.
    """
    seen = it.survey
    if seen is None:
        raise StateError("the repository in the workspace has been replaced")
    head = None if it.taken is None else it.taken.head
    links = find_gitlinks(it.store, it.workspace, seen, head)
    return write_survey(it.store, seen, gitlinks=links)


def find_gitlinks(
    store: IntakeRepository, workspace: WorkspaceFiles, seen: FileStatus, head: str | None
) -> dict[InsidePath, ObjectId]:
    """The submodules that HEAD records and those added or moved since, at their current commits.
    Nested repositories that are no submodules are not included.
    """
    moved = {} if head is None else comparison.difference(store, seen.commit, head)
    recorded = {
        path: after.object_id
        for path, (_, after) in moved.items()
        if after is not None and after.mode == GITLINK
    }
    places = {*recorded, *(path for path in seen.repositories if path in seen.tracked)}
    # A nested submodule is recorded by its parent.
    places |= {path for path in seen.submodules if not _is_in_repository(workspace, path)}
    links = {
        path: submodules.find_head(workspace.tree, path) or recorded.get(path)
        for path in places
        if workspace.tree.kind(path) == "directory"
    }
    return {path: commit for path, commit in links.items() if commit is not None}


def _is_in_repository(workspace: WorkspaceFiles, path: InsidePath) -> bool:
    return any(workspace.tree.kind(above.child(b".git")) is not None for above in path.parents())


def write_survey(
    store: IntakeRepository,
    seen: FileStatus,
    *,
    gitlinks: Mapping[InsidePath, ObjectId] | None = None,
) -> ObjectId:
    """Writes all files of a comparison as a tree. Raises StateError if one can no longer be read: a
    tree without it would look complete.
    """
    missed: list[InsidePath] = []
    tree = workspace_tree.write_tree(
        store, seen.commit, seen.reader, seen.changed(), seen.removed, gitlinks or {},
        links=seen.links, missed=missed,
    )  # fmt: skip
    if missed:
        raise StateError(
            f"`{missed[0].shown()}` changed while it was being read",
            hint="stop the process that writes to it, and try again",
        )
    return tree


def _has_staged(site: Site, it: Examined) -> bool:
    """Whether the index has content that neither HEAD nor the files have."""
    taken, seen = it.taken, it.survey
    if taken is None or seen is None or taken.head is None:
        return False
    return bool(staged_only(site, it.workspace, it.store, seen, taken.head))


def _find_staged(site: Site, it: Examined) -> ObjectId | None:
    """The index as a tree, if it differs from HEAD and can be written."""
    taken, seen = it.taken, it.survey
    staged = None if taken is None else site.staged(it.workspace)
    if staged is None or taken is None or taken.head is None or seen is None:
        return None
    held = tracked_below(it.store, taken.head, None)
    if held == {entry.path: TreeEntry(entry.mode, entry.object_id) for entry in staged}:
        return None
    given = None
    if site.plan.is_layered:
        # Of the owner's objects only those in HEAD and the files: knowing an id gives no access.
        base = tracked_below(it.store, seen.commit, None)
        given = {entry.object_id for entry in (*held.values(), *base.values())}
        given |= set(seen.ids.values())
        given |= site.visible({entry.object_id for entry in staged} - given)
    return comparison.write_index(it.store, it.workspace.tree, staged, given=given)


def _note_with_files(site: Site, shelf: Shelf, kept: _Kept) -> RecoveryPoint | None:
    """Saves a point with files. Copies are complete before the point's ref is created.

    The files of a worktree are moved, which needs no space, once everything else is stored.
    """
    place = shelf.files_of(kept.point)
    if site.plan.is_layered:
        _copy_aside(site, place)
        return _note(site, shelf, kept, has_files=True)
    made = _note(site, shelf, kept, has_files=True)
    site.set_aside(place)
    return made


def _copy_aside(site: Site, place: Path) -> None:
    """Copies the files completely or not at all."""
    partial = _remove_partial(place)
    try:
        site.set_aside(partial)
    except BaseException:
        _remove_partial(place)
        raise
    # From an earlier attempt; the capsule still has everything.
    files.remove_tree(place, within=place.parent)
    os.rename(partial, place)


def _remove_partial(place: Path) -> Path:
    """Removes the partial copy of a failed attempt; returns the target of the next one."""
    partial = place.with_name(f"{place.name}.partial")
    # A copying driver renames the copy when it is complete.
    for left in (partial, partial.with_name(f".{partial.name}")):
        files.remove_tree(left, within=place.parent)
    with suppress(OSError):
        place.parent.rmdir()
    return partial


def _note(
    site: Site, shelf: Shelf, kept: _Kept, *, has_files: bool = False
) -> RecoveryPoint | None:
    """Stores the commits, writes their description, then creates the point's ref."""
    ref = PREFIX + kept.point
    before = git.find_ref(ref, cwd=shelf.repository)
    made = _commit(site, shelf, kept, before)
    point = RecoveryPoint(
        id=kept.point,
        capsule=kept.point.split("/", maxsplit=1)[0],
        ref=ref,
        commit=made.commit,
        base_commit=kept.base,
        head_commit=kept.tips[0],
        index_commit=made.staged,
        stored_at=time.time(),
        files=str(shelf.files_of(kept.point)) if has_files else None,
        files_base=_files_base(site, shelf, kept) if has_files else None,
        lacks=kept.lacks,
        stashes=kept.stashes,
    )
    if (
        before == made.commit
        and (known := recovery_points.find_point(shelf, kept.point)) is not None
    ):
        return known
    recovery_points.describe(shelf, point)
    if before != made.commit:
        git.move_ref(ref, made.commit, old=before, cwd=shelf.repository)
    return point


def _files_base(site: Site, shelf: Shelf, kept: _Kept) -> str | None:
    """The commit that the saved files differ from; None if they are complete."""
    from atoll.host.recovery import restored_files  # noqa: PLC0415 - copies: rarely needed

    is_all = not site.plan.is_layered or restored_files.is_whole(shelf.files_of(kept.point))
    return None if is_all else site.plan.base_commit


class _Made(NamedTuple):
    commit: str
    staged: str | None


def _commit(site: Site, shelf: Shelf, kept: _Kept, before: str | None) -> _Made:
    """Creates the commits of a point in the owner's repository."""
    with _store_of(site, kept) as store:
        tree = kept.tree or comparison.tree_of(store, kept.tips[0])
        head = kept.tips[0]
        index = None
        if kept.staged is not None:
            index = _written(store, kept.staged, [head], b"index\n")
        # Changed after an interrupted removal had saved the workspace: both states are saved.
        earlier = [] if before is None else [before]
        if before is not None and _holds(store, before, tree, head):
            _keep_objects(site, shelf, store, kept, before)
            return _Made(before, index)
        parents = [*kept.tips, *earlier, *([index] if index is not None else [])]
        text = f"atoll: recovery point {kept.point}\n\nAtoll-Base: {kept.base}\n"
        text += f"Atoll-Head: {head}\n" + (f"Atoll-Index: {index}\n" if index else "")
        made = _written(store, tree, parents, text.encode())
        if kept.workspace is not None:
            # LFS objects of commits are imported already; staged files may refer to others.
            site.export_parts(kept.workspace, store, [made])
        commits.publish(store, shelf.repository, [made], known=kept.tips)
        _keep_objects(site, shelf, store, kept, made)
        return _Made(made, index)


def _keep_objects(
    site: Site, shelf: Shelf, store: IntakeRepository, kept: _Kept, commit: str
) -> None:
    # Nothing in a stand-in is pruned.
    if not stand_in_repositories.is_standin(site.plan):
        kept_lfs_objects.keep(shelf, store, kept.point, commit, base=kept.base)


def _written(store: IntakeRepository, tree: str, parents: list[str], text: bytes) -> ObjectId:
    who = (NAME, ADDRESS)
    return commits.commit(store, tree, parents, text, who, who, int(time.time()))


@contextmanager
def _store_of(site: Site, kept: _Kept) -> Iterator[IntakeRepository]:
    if kept.store is not None:
        yield kept.store
        return
    with open_store(site.plan.repository, scratch=site.scratch) as store:
        yield store


def _holds(store: IntakeRepository, point: str, tree: str, head: str) -> bool:
    """Whether a point holds the current content of the workspace."""
    parents = store.run("rev-parse", f"{point}^@").decode().split()
    return comparison.tree_of(store, point) == tree and parents[:1] == [head]


def save_files(site: Site, *, point: str, home: Path) -> RecoveryPoint | None:
    """Saves the files of a workspace whose commits were lost with the owner's repository. The
    site's repository is a stand-in; the point there is a commit without files or history.
    """
    shelf = Shelf(site.plan.repository, home)
    if not site.is_there():
        return recovery_points.find_point(shelf, point)
    with open_store(site.plan.repository, scratch=site.scratch) as store:
        empty = recovery_points.EMPTY_TREES[len(site.plan.base_commit)]
        store.run("mktree")
        root = _written(store, empty, [], b"atoll: history lost with the repository\n")
        commits.publish(store, shelf.repository, [root], known=[])
    kept = _Kept(point, root, [root], lacks="the repository with its commits no longer exists")
    return _note_with_files(site, shelf, kept)
