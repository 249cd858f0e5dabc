"""How what exists only in a workspace is kept when the workspace must go.

A recovery point is a commit under `refs/atoll/recovery/`: its tree is every file as it stood
(untracked ones too), its first parent the HEAD of that moment, its last the index where that
differs. What git cannot store (repositories inside the workspace, files that cannot be read, a
workspace whose repository was destroyed) is kept aside as plain files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.workspace.examination import (
    UNREADABLE,
    Examined,
    Site,
    examined,
    find_work,
    staged_only,
)
from atoll.drivers.workspace.survey import Survey
from atoll.host import files, git, points, space
from atoll.host.intake import commits, comparison, trees
from atoll.host.intake.content import TreeEntry, tracked_below
from atoll.host.intake.store import Store, open_store
from atoll.host.points import PREFIX, Shelf
from atoll.model.errors import PrerequisiteError, StateError
from atoll.model.state import RecoveryPoint
from atoll.model.untrusted import InsidePath, ObjectId

NAME, ADDRESS = "Atoll", "atoll@localhost"


def save(site: Site, *, point: str, base: str, home: Path) -> RecoveryPoint | None:
    """`base` is the commit that the capsule's work began at."""
    plan = site.plan
    shelf = Shelf(plan.repository, home)
    if not Path(plan.repository).is_dir():
        return _save_without_repository(site, shelf, point, base) if site.is_there() else None
    if not site.is_there():
        work = find_work(site)
        if not work.any:
            return points.find_point(shelf, point)
        return _note(site, shelf, _Kept(point, base, site.committed()))
    try:
        return _save_examined(site, shelf, point, base)
    except UNREADABLE:
        # Not even its top can be opened: all of it is kept as files.
        kept = _Kept(point, base, site.committed() or [plan.base_commit])
        return _note_with_files(site, shelf, kept)


def _save_examined(site: Site, shelf: Shelf, point: str, base: str) -> RecoveryPoint | None:
    plan = site.plan
    with examined(site) as it:
        if not it.work.any:
            return points.find_point(shelf, point)
        tree = _find_tree(it, is_copied=bool(plan.pool))
        changed = it.work.uncommitted or it.work.untracked
        staged = None if tree is None else _find_staged(site, it, tree)
        is_staged_lost = staged is None and tree is not None and _has_staged(site, it)
        lost_to_git = it.work.nested or is_staged_lost or (tree is None and changed)
        tips = [*(it.taken.tips if it.taken is not None else ()), *site.committed()]
        kept = _Kept(
            point=point,
            base=base,
            tips=list(dict.fromkeys(tips)) or [plan.base_commit],
            tree=tree,
            store=it.store,
            staged=staged,
        )
        if lost_to_git:
            # An interrupted removal comes here again.
            return _note_with_files(site, shelf, kept)
        return _note(site, shelf, kept)


class _Kept(NamedTuple):
    """What a point is to hold."""

    point: str
    base: str
    tips: list[str]
    tree: ObjectId | None = None
    store: Store | None = None
    staged: ObjectId | None = None


def _find_tree(it: Examined, *, is_copied: bool) -> ObjectId | None:
    """The files as a tree; None when git cannot store them: then they are kept as they are."""
    if it.survey is None:
        return None
    try:
        return write_files(it)
    except (StateError, PrerequisiteError) as error:
        if is_copied and space.is_shortage(error):
            # A copy of the files would need as much room.
            raise
        return None


def write_files(it: Examined) -> ObjectId:
    """All files that are not ignored, as a tree in the store. Raises StateError."""
    seen = it.survey
    if seen is None:
        raise StateError("the repository in the workspace is not the one that it was made with")
    return write_survey(it.store, seen)


def write_survey(
    store: Store,
    seen: Survey,
    *,
    gitlinks: Mapping[InsidePath, ObjectId] | None = None,
) -> ObjectId:
    """All files that a survey found, as a tree in the store. Raises StateError when one cannot be
    read any more: a tree without it would be taken for the whole.
    """
    missed: list[InsidePath] = []
    tree = trees.write_tree(
        store, seen.commit, seen.reader, seen.changed(), seen.removed, gitlinks or {},
        links=seen.links, missed=missed,
    )  # fmt: skip
    if missed:
        raise StateError(
            f"`{missed[0].shown()}` changed while it was read",
            hint="stop what writes there, and try again",
        )
    return tree


def _has_staged(site: Site, it: Examined) -> bool:
    """Whether the index holds something that neither HEAD nor the files do."""
    taken, seen = it.taken, it.survey
    if taken is None or seen is None or taken.head is None:
        return False
    return bool(staged_only(site, it.workspace, it.store, seen, taken.head))


def _find_staged(site: Site, it: Examined, everything: ObjectId) -> ObjectId | None:
    """The index as a tree, if that is neither HEAD nor all files and can be written."""
    taken, seen = it.taken, it.survey
    staged = None if taken is None else site.staged(it.workspace)
    if staged is None or taken is None or taken.head is None or seen is None:
        return None
    held = tracked_below(it.store, taken.head, None)
    if held == {entry.path: TreeEntry(entry.mode, entry.object_id) for entry in staged}:
        return None
    given = None
    if site.plan.pool:
        # Of what the owner has, only what HEAD and the files name: an id alone gives no right.
        base = tracked_below(it.store, seen.commit, None)
        given = {entry.object_id for entry in (*held.values(), *base.values())}
        given |= set(seen.ids.values())
        given |= site.visible({entry.object_id for entry in staged} - given)
    tree = comparison.write_index(it.store, it.workspace.tree, staged, given=given)
    return None if tree == everything else tree


def _note_with_files(site: Site, shelf: Shelf, kept: _Kept) -> RecoveryPoint | None:
    """A point is listed from the moment of its ref on: copies are complete before.

    The files of a worktree are moved, which needs no room, and only when all else is stored.
    """
    place = shelf.files_of(kept.point)
    if site.plan.pool:
        _copy_aside(site, place)
        return _note(site, shelf, kept, has_files=True)
    made = _note(site, shelf, kept, has_files=True)
    site.set_aside(place)
    return made


def _copy_aside(site: Site, place: Path) -> None:
    """Copies the files whole or not at all."""
    partial = place.with_name(f"{place.name}.partial")
    files.remove_tree(partial, within=place.parent)
    try:
        site.set_aside(partial)
    except BaseException:
        files.remove_tree(partial, within=place.parent)
        raise
    # Of an earlier attempt; the capsule still has it all.
    files.remove_tree(place, within=place.parent)
    os.rename(partial, place)


def _note(
    site: Site, shelf: Shelf, kept: _Kept, *, has_files: bool = False
) -> RecoveryPoint | None:
    """Stores the commits, writes down what they are, then names them by the point's ref."""
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
    )
    if before == made.commit and (known := points.find_point(shelf, kept.point)) is not None:
        return known
    points.describe(shelf, point)
    if before != made.commit:
        git.move_ref(ref, made.commit, old=before, cwd=shelf.repository)
    return point


class _Made(NamedTuple):
    commit: str
    staged: str | None


def _commit(site: Site, shelf: Shelf, kept: _Kept, before: str | None) -> _Made:
    """The commits of a point, in the owner's repository."""
    with _store_of(site, kept) as store:
        tree = kept.tree or comparison.tree_of(store, kept.tips[0])
        head = kept.tips[0]
        index = None
        if kept.staged is not None:
            index = _written(store, kept.staged, [head], b"index\n")
        # Work that came after an interrupted removal had saved: both states are kept.
        earlier = [] if before is None else [before]
        if before is not None and _holds(store, before, tree, head):
            return _Made(before, index)
        parents = [*kept.tips, *earlier, *([index] if index is not None else [])]
        text = f"atoll: recovery point {kept.point}\n\nAtoll-Base: {kept.base}\n"
        text += f"Atoll-Head: {head}\n" + (f"Atoll-Index: {index}\n" if index else "")
        made = _written(store, tree, parents, text.encode())
        commits.publish(store, shelf.repository, [made], known=kept.tips)
        return _Made(made, index)


def _written(store: Store, tree: str, parents: list[str], text: bytes) -> ObjectId:
    who = (NAME, ADDRESS)
    return commits.commit(store, tree, parents, text, who, who, int(time.time()))


@contextmanager
def _store_of(site: Site, kept: _Kept) -> Iterator[Store]:
    if kept.store is not None:
        yield kept.store
        return
    with open_store(site.plan.repository, scratch=site.scratch) as store:
        yield store


def _holds(store: Store, point: str, tree: str, head: str) -> bool:
    """Whether a point holds what the workspace holds now."""
    parents = store.run("rev-parse", f"{point}^@").decode().split()
    return comparison.tree_of(store, point) == tree and parents[:1] == [head]


def _save_without_repository(site: Site, shelf: Shelf, point: str, base: str) -> RecoveryPoint:
    """The owner's repository is gone, so the workspace is kept as plain files."""
    aside = shelf.files_of(point)
    site.set_aside(aside)
    return RecoveryPoint(
        id=point,
        capsule=point.split("/", maxsplit=1)[0],
        ref="",
        commit="",
        base_commit=base,
        head_commit=base,
        stored_at=os.stat(aside).st_mtime,
        files=str(aside),
    )
