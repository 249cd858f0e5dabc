"""What exists only in a workspace, and how it is kept when the workspace must go.

A recovery point is a commit under `refs/atoll/recovery/`: its tree is every file as it stood
(untracked ones too), its first parent the HEAD of that moment, its last the index where that
differs. What git cannot store (repositories inside the workspace, files that cannot be read, a
workspace whose repository was destroyed) is kept aside as plain files.

Everything is decided from files, on the host (`survey.py`); a `Site` says where they are and how
the commits in them come to the owner's repository.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from atoll.drivers.workspace.survey import Survey, Workspace, compare, survey
from atoll.host import git, points
from atoll.host.intake import commits, comparison, trees
from atoll.host.intake.content import TreeEntry, tracked_below
from atoll.host.intake.index import Staged
from atoll.host.intake.store import Store, open_store
from atoll.host.points import PREFIX, Shelf
from atoll.model.errors import DriverError, PrerequisiteError, StateError
from atoll.model.plan import WorkspacePlan
from atoll.model.state import RecoveryPoint, Work
from atoll.model.untrusted import InsidePath, ObjectId

NAME, ADDRESS = "Atoll", "atoll@localhost"
_UNREADABLE = (StateError, DriverError, PrerequisiteError, OSError)
ALL = (".",)
"""In the place of paths: the whole workspace."""


class Taken(NamedTuple):
    """What a workspace's repository says, as data; the owner's repository has the objects."""

    head: ObjectId | None
    head_ref: str | None
    """None when HEAD is detached."""
    branch: ObjectId | None
    """Where the capsule's own branch stands."""
    tips: tuple[ObjectId, ...]
    """HEAD first, then whatever else commits of the capsule hang on."""
    is_whole: bool = True
    """False when a ref or the index cannot be read: it may name anything."""


class Site(Protocol):
    """A workspace and the repository that it belongs to."""

    @property
    def plan(self) -> WorkspacePlan: ...

    def is_there(self) -> bool:
        """Whether there are files."""

    def opened(self) -> AbstractContextManager[tuple[Workspace, Store]]:
        """The files, and a store for objects made of them."""

    def take(self, workspace: Workspace, *, everything: bool) -> Taken | None:
        """Takes over what HEAD and the branch hold, or `everything` that is committed or stashed;
        None when the repository is not the one that the workspace was made with. Raises StateError
        when it is refused.
        """

    def staged(self, workspace: Workspace) -> tuple[Staged, ...] | None:
        """The index; None when it cannot be read, or is as the workspace was made with."""

    def committed(self) -> list[str]:
        """The commits that are the capsule's and in the owner's repository already."""

    def is_changed_module(self, workspace: Workspace, path: InsidePath, commit: ObjectId) -> bool:
        """Whether a submodule holds something that the owner's copy of it does not have."""

    def lost_submodules(self, store: Store, head: str) -> list[InsidePath]:
        """Submodules that HEAD records at a commit which only the capsule has."""

    def set_aside(self, aside: Path) -> None:
        """Keeps the files as they are in a directory of Atoll's home."""

    @property
    def scratch(self) -> Path:
        """Where a store for one question may be made: on Atoll's own filesystem."""


class Examined(NamedTuple):
    """A workspace that was looked at."""

    work: Work
    workspace: Workspace
    store: Store
    taken: Taken | None = None
    survey: Survey | None = None
    """None when files and commits cannot be told apart: then all is kept as files."""


def find_work(site: Site) -> Work:
    if not Path(site.plan.repository).is_dir():
        return Work(nested=ALL if site.is_there() else ())
    if not site.is_there():
        return Work(commits=_lonely_commits(site, site.committed()))
    try:
        with examined(site) as it:
            return it.work
    except _UNREADABLE:
        return _unexamined(site)


def _unexamined(site: Site) -> Work:
    """What cannot be looked at may hold anything."""
    return Work(commits=_lonely_commits(site, site.committed()), nested=ALL)


@contextmanager
def examined(site: Site) -> Iterator[Examined]:
    """Looks at a workspace that is there, and whose owner's repository is.

    Whatever the capsule did to its files and commits, an answer comes: at worst that all of it has
    to be kept as files. Raises one of `_UNREADABLE` when not even its top can be opened.
    """
    with site.opened() as (workspace, store):
        taken, refused = _take(site, workspace)
        if taken is None:
            lonely = _lonely_commits(site, site.committed())
            yield Examined(Work(commits=lonely, nested=ALL), workspace, store)
            return
        tips = list(dict.fromkeys([*taken.tips, *site.committed()]))
        lonely = _lonely_commits(site, tips)
        try:
            work, seen = _look(site, workspace, store, taken)
        except _UNREADABLE:
            yield Examined(Work(commits=lonely, nested=ALL), workspace, store, taken)
            return
        if refused or not taken.is_whole:
            work = work._replace(nested=(*work.nested, *ALL))
        work = work._replace(commits=lonely)
        if not work.any and taken.head is not None:
            only = _staged_only(site, workspace, store, seen, taken.head)
            work = work._replace(uncommitted=only)
        yield Examined(work, workspace, store, taken, seen)


def _look(site: Site, workspace: Workspace, store: Store, taken: Taken) -> tuple[Work, Survey]:
    """The files, compared with HEAD."""
    absent = _left_out(site, workspace)
    seen = survey(
        store, workspace, site.plan.base_commit,
        also=taken.head, staged=staged_paths(site, workspace),
        absent=absent, is_changed=site.is_changed_module,
    )  # fmt: skip
    against = compare(store, seen, taken.head)
    nested = dict.fromkeys(seen.left_out())
    if taken.head is not None:
        lost = site.lost_submodules(store, taken.head)
        nested |= dict.fromkeys(path.shown() for path in lost)
    work = Work(
        uncommitted=_shown(against.uncommitted),
        untracked=_shown(against.untracked),
        nested=tuple(nested),
        ignored=seen.ignored,
    )
    return work, seen


def _take(site: Site, workspace: Workspace) -> tuple[Taken | None, bool]:
    """What is committed, and whether some of it is refused, incomplete or broken: that is only in
    the capsule's files.
    """
    for everything in (True, False):
        try:
            return site.take(workspace, everything=everything), not everything
        except (StateError, DriverError):
            continue
    return None, True


def staged_paths(site: Site, workspace: Workspace) -> list[InsidePath]:
    """What the index names, where it is not as the workspace was made with."""
    return [entry.path for entry in site.staged(workspace) or ()]


def _left_out(site: Site, workspace: Workspace) -> frozenset[InsidePath]:
    """What a sparse checkout leaves out, as the index says, where no layer says it."""
    if workspace.below is not None:
        return frozenset()
    return frozenset(entry.path for entry in site.staged(workspace) or () if entry.skip_worktree)


def _shown(paths: tuple[InsidePath, ...]) -> tuple[str, ...]:
    return tuple(path.shown() for path in paths)


def _staged_only(
    site: Site, workspace: Workspace, store: Store, seen: Survey, head: str
) -> tuple[str, ...]:
    """What is staged and neither in HEAD nor in the files: of this only the index knows."""
    staged = site.staged(workspace)
    if staged is None:
        return ()
    held = tracked_below(store, head, None)
    return tuple(
        entry.path.shown()
        for entry in staged
        if not entry.intent_to_add
        and (entry.path not in held or held[entry.path].object_id != entry.object_id)
        and seen.ids.get(entry.path) != entry.object_id
    )


def _lonely_commits(site: Site, tips: list[str]) -> int:
    plan = site.plan
    if not tips:
        return 0
    owner = git.find_commit("HEAD", cwd=plan.checkout) if Path(plan.checkout).is_dir() else None
    holders = [owner] if owner is not None else []
    holders += [f"--exclude={plan.branch}"] if plan.branch is not None else []
    # A branch that another removal deletes while it is listed would be a bad object.
    with git.turn(plan.repository, shared=True):
        answer = git.git(
            "rev-list", "--count", *tips, "--not", *holders,
            "--branches", "--remotes", "--tags", f"--glob={PREFIX}*",
            cwd=plan.repository,
        )  # fmt: skip
    return int(answer.text)


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
    except _UNREADABLE:
        # Not even its top can be opened: all of it is kept as files.
        kept = _Kept(point, base, site.committed() or [plan.base_commit])
        made = _note(site, shelf, kept, has_files=True)
        site.set_aside(shelf.files_of(point))
        return made


def _save_examined(site: Site, shelf: Shelf, point: str, base: str) -> RecoveryPoint | None:
    plan = site.plan
    with examined(site) as it:
        if not it.work.any:
            return points.find_point(shelf, point)
        tree = _find_tree(it)
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
        made = _note(site, shelf, kept, has_files=bool(lost_to_git))
        if lost_to_git:
            # An interrupted removal comes here again.
            site.set_aside(shelf.files_of(point))
        return made


class _Kept(NamedTuple):
    """What a point is to hold."""

    point: str
    base: str
    tips: list[str]
    tree: ObjectId | None = None
    store: Store | None = None
    staged: ObjectId | None = None


def _find_tree(it: Examined) -> ObjectId | None:
    """The files as a tree; None when git cannot store them: then they are kept as they are."""
    if it.survey is None:
        return None
    try:
        return write_files(it)
    except (StateError, PrerequisiteError):
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
    return bool(_staged_only(site, it.workspace, it.store, seen, taken.head))


def _find_staged(site: Site, it: Examined, everything: ObjectId) -> ObjectId | None:
    """The index as a tree, if that is neither HEAD nor all files and can be written."""
    taken, seen = it.taken, it.survey
    staged = None if taken is None else site.staged(it.workspace)
    if staged is None or taken is None or taken.head is None or seen is None:
        return None
    held = tracked_below(it.store, taken.head, None)
    if held == {entry.path: TreeEntry(entry.mode, entry.object_id) for entry in staged}:
        return None
    # Of what the owner has, only what HEAD and the files name: an id alone is no right to a blob.
    given = {entry.object_id for entry in held.values()} | set(seen.ids.values())
    given |= {entry.object_id for entry in tracked_below(it.store, seen.commit, None).values()}
    tree = comparison.write_index(it.store, it.workspace.tree, staged, given=given)
    return None if tree == everything else tree


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
