"""Finds work that exists only in a workspace, on the host and from files and commits as data.

Everything is decided from files (`file_status.py`); a `Site` knows where they are and how their
commits are imported into the owner's repository.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from atoll.drivers.workspace import file_status
from atoll.drivers.workspace.file_status import FileStatus, WorkspaceFiles, compare, survey
from atoll.drivers.workspace.referenced_objects import Parts
from atoll.drivers.workspace.submodules import OwnerCheck
from atoll.host import git, ref_files
from atoll.host.intake.blob_filters import tracked_below
from atoll.host.intake.index import IndexEntry
from atoll.host.intake.store import IntakeRepository
from atoll.host.process import Completed
from atoll.host.recovery.recovery_points import PREFIX
from atoll.model.errors import AtollError, DriverError, PrerequisiteError, StateError
from atoll.model.plan import WorkspacePlan
from atoll.model.secretvalues import SecretSearch
from atoll.model.state import WHOLE, Work
from atoll.model.untrusted import InsidePath, ObjectId

UNREADABLE = (StateError, DriverError, PrerequisiteError, OSError)
HOLDERS = ("refs/heads/", "refs/remotes/", "refs/tags/", PREFIX)
"""Refs that keep commits in the owner's repository."""


class ImportedRefs(NamedTuple):
    """The state of a workspace's repository; the owner's repository has the objects."""

    head: ObjectId | None
    head_ref: str | None
    """None when HEAD is detached."""
    branch: ObjectId | None
    """The commit of the capsule's branch."""
    tips: tuple[ObjectId, ...]
    """HEAD first, then all other commits with which the capsule's history ends."""
    is_whole: bool = True
    """False if a ref or the index cannot be read: it may name anything."""
    stashes: tuple[ObjectId, ...] = ()
    """The tips that are stash entries, newest first."""
    fetched: tuple[ObjectId, ...] = ()
    """The tips that only remote-tracking refs name."""


class Site(Protocol):
    """A workspace and the repository that it belongs to."""

    @property
    def plan(self) -> WorkspacePlan: ...

    @property
    def search(self) -> SecretSearch | None:
        """Finds what must not leave the workspace; None for a recovery point, which has all."""

    def is_there(self) -> bool:
        """Whether the workspace has files."""

    def opened(self) -> AbstractContextManager[tuple[WorkspaceFiles, IntakeRepository]]:
        """The files, and a store for objects made from them."""

    def take(self, workspace: WorkspaceFiles, *, everything: bool) -> ImportedRefs | None:
        """Imports what HEAD and the branch name, or `everything` that is committed or stashed; None
        if the repository was replaced. Raises StateError if the import is refused.
        """

    def export_parts(
        self, workspace: WorkspaceFiles, store: IntakeRepository, tips: Sequence[str]
    ) -> Parts:
        """Imports what commits refer to: Git LFS objects and submodule commits. The store has
        access to the commits. Raises StateError or DriverError.
        """

    def staged(self, workspace: WorkspaceFiles) -> tuple[IndexEntry, ...] | None:
        """The index; None if it cannot be read, or is unchanged since the workspace was created."""

    def visible(self, names: Collection[ObjectId]) -> set[ObjectId]:
        """The blobs that the capsule can read in the history that it was given."""

    @property
    def committed(self) -> list[str]:
        """The capsule's commits that the owner's repository has already."""

    def is_changed_module(
        self, workspace: WorkspaceFiles, path: InsidePath, commit: ObjectId, before: ObjectId | None
    ) -> bool:
        """Whether a submodule recorded at `commit` has content that the owner's copy lacks; the
        base commit recorded it at `before`.
        """

    def owner_check(self, workspace: WorkspaceFiles) -> OwnerCheck:
        """What is known of submodules outside the capsule."""

    def lost_submodules(
        self, workspace: WorkspaceFiles, store: IntakeRepository, head: str
    ) -> list[InsidePath]:
        """Submodules that HEAD records at a commit which only the capsule has."""

    def set_aside(self, aside: Path) -> None:
        """Saves the files in a directory of Atoll's home."""

    @property
    def scratch(self) -> Path:
        """A directory for temporary stores on the filesystem of Atoll's home."""


class Examined(NamedTuple):
    """An examined workspace."""

    work: Work
    workspace: WorkspaceFiles
    store: IntakeRepository
    taken: ImportedRefs | None = None
    survey: FileStatus | None = None
    """None if files and commits cannot be compared: then everything is saved as files."""
    trouble: Exception | None = None
    """Why some of it could not be examined."""

    @property
    def may_pass(self) -> bool:
        """Whether a retry may succeed: a program was killed, or something was written."""
        return isinstance(self.trouble, (DriverError, OSError))


def branch_commits(plan: WorkspacePlan) -> list[str]:
    """The commit of the capsule's branch in the owner's repository, if it exists."""
    ref = None if plan.branch is None else f"refs/heads/{plan.branch}"
    tip = None if ref is None else git.find_ref(ref, cwd=plan.repository)
    return [] if tip is None else [tip]


def find_work(site: Site) -> Work:
    if not Path(site.plan.repository).is_dir():
        return Work(nested=WHOLE if site.is_there() else ())
    if not site.is_there():
        return Work(commits=_count_unique(site, site.committed))
    try:
        with examined(site) as it:
            return it.work
    except UNREADABLE:
        return _unexamined(site)


def _unexamined(site: Site) -> Work:
    """A workspace that cannot be examined may contain anything."""
    return Work(commits=_count_unique(site, site.committed), nested=WHOLE)


@contextmanager
def examined(site: Site) -> Iterator[Examined]:
    """Examines an existing workspace of an existing repository.

    Succeeds whatever the capsule did to its files and commits: in the worst case everything has
    to be saved as files. Raises one of `UNREADABLE` when not even its root can be opened.
    """
    with site.opened() as (workspace, store):
        taken, trouble = _take(site, workspace)
        if taken is None:
            work = Work(commits=_count_unique(site, site.committed), nested=WHOLE)
            yield Examined(work, workspace, store, trouble=trouble)
            return
        lonely = _unique_commits(site, taken)
        left_behind = _missing_lfs_objects(site, workspace, store, taken.tips)
        try:
            work, seen = _look(site, workspace, store, taken)
        except UNREADABLE as error:
            work = lonely._replace(nested=WHOLE)
            yield Examined(work, workspace, store, taken, trouble=error)
            return
        if trouble is not None or not taken.is_whole:
            work = work._replace(nested=(*work.nested, *WHOLE))
        work = work._replace(
            commits=lonely.commits,
            stashes=lonely.stashes,
            off_branch=lonely.off_branch,
            fetched=lonely.fetched,
            large=left_behind,
        )
        if not work.any and taken.head is not None:
            only = staged_only(site, workspace, store, seen, taken.head)
            work = work._replace(uncommitted=only)
        yield Examined(work, workspace, store, taken, seen, trouble)


def _look(
    site: Site, workspace: WorkspaceFiles, store: IntakeRepository, taken: ImportedRefs
) -> tuple[Work, FileStatus]:
    """The files, compared with HEAD."""
    absent, staged = _left_out(site, workspace), staged_paths(site, workspace)
    seen = survey(
        store, workspace, site.plan.base_commit,
        also=taken.head, staged=staged, absent=absent, is_changed=site.is_changed_module,
        owner=site.owner_check(workspace),
    )  # fmt: skip
    against = compare(store, seen, taken.head, staged=staged)
    if site.plan.is_dirty:
        against = file_status.without_owner_copies(Path(site.plan.checkout), store, seen, against)
    nested = dict.fromkeys(seen.nested())
    if taken.head is not None:
        lost = site.lost_submodules(workspace, store, taken.head)
        shown = [path.shown() for path in lost]
        nested |= dict.fromkeys(path for path in shown if f"{path}/" not in nested)
    work = Work(
        uncommitted=_shown(against.uncommitted),
        untracked=_shown(against.untracked),
        nested=tuple(nested),
        unstorable=seen.unstorable(),
        ignored=seen.ignored + len(seen.own_rules),
    )
    return work, seen


def _take(site: Site, workspace: WorkspaceFiles) -> tuple[ImportedRefs | None, AtollError | None]:
    """What is committed, and why some of it is refused, incomplete or broken: that exists only in
    the capsule's files.
    """
    trouble: AtollError | None = None
    for everything in (True, False):
        try:
            return site.take(workspace, everything=everything), trouble
        except (StateError, DriverError) as error:
            trouble = trouble or error
    return None, trouble


def _missing_lfs_objects(
    site: Site, workspace: WorkspaceFiles, store: IntakeRepository, tips: Sequence[str]
) -> tuple[str, ...]:
    """Git LFS objects that commits refer to and that only the capsule's files have."""
    try:
        return site.export_parts(workspace, store, tips).refused
    except (StateError, DriverError):
        return WHOLE


def staged_paths(site: Site, workspace: WorkspaceFiles) -> list[InsidePath]:
    """The paths in the index, if it changed since the workspace was created."""
    return [entry.path for entry in site.staged(workspace) or ()]


def _left_out(site: Site, workspace: WorkspaceFiles) -> frozenset[InsidePath]:
    """Paths that a sparse checkout leaves out, according to the index, without layers."""
    if workspace.below is not None:
        return frozenset()
    return frozenset(entry.path for entry in site.staged(workspace) or () if entry.skip_worktree)


def _shown(paths: tuple[InsidePath, ...]) -> tuple[str, ...]:
    return tuple(path.shown() for path in paths)


def staged_only(
    site: Site, workspace: WorkspaceFiles, store: IntakeRepository, seen: FileStatus, head: str
) -> tuple[str, ...]:
    """Content that is staged but neither in HEAD nor in the files. What `--dirty` copied is left
    out as long as the owner has it staged as well.
    """
    staged = site.staged(workspace)
    if staged is None:
        return ()
    held = tracked_below(store, head, None)
    only = [
        entry
        for entry in staged
        if not entry.intent_to_add
        and (entry.path not in held or held[entry.path].object_id != entry.object_id)
        and seen.ids.get(entry.path) != entry.object_id
    ]
    if only and site.plan.is_dirty:
        owners = file_status.owner_staged(Path(site.plan.checkout))
        only = [entry for entry in only if (entry.path.raw, entry.object_id) not in owners]
    # A conflict has up to three sides.
    return tuple(dict.fromkeys(entry.path.shown() for entry in only))


def _unique_commits(site: Site, taken: ImportedRefs) -> Work:
    """The commits that only the capsule has, by location."""
    tips = list(dict.fromkeys([*taken.tips, *site.committed]))
    every = _count_unique(site, tips)
    if not every:
        return Work()
    others = [tip for tip in tips if tip not in taken.stashes]
    commits = _count_unique(site, others) if taken.stashes else every
    own = [*site.committed, *([] if taken.branch is None else [taken.branch])]
    is_off = not set(others) <= set(own)
    stashes = 0
    if every > commits:
        listed = _list_unique(site, taken.stashes).lines
        stashes = len(set(taken.stashes).intersection(listed)) or 1
    off_branch = commits - _count_unique(site, own) if is_off else 0
    rest = list(dict.fromkeys([*own, *(tip for tip in others if tip not in taken.fetched)]))
    fetched = commits - _count_unique(site, rest) if off_branch and taken.fetched else 0
    return Work(commits=commits, stashes=stashes, off_branch=off_branch, fetched=fetched)


def _count_unique(site: Site, tips: list[str]) -> int:
    if not tips or _are_held(site.plan, tips):
        return 0
    return int(_list_unique(site, ["--count", *tips]).text)


def _list_unique(site: Site, words: Sequence[str]) -> Completed:
    plan = site.plan
    owner = _owner_head(plan)
    holders = [owner] if owner is not None else []
    holders += [f"--exclude={plan.branch}"] if plan.branch is not None else []
    # A branch that another removal deletes at the same time would be a bad object.
    with git.turn(plan.repository, shared=True):
        return git.git(
            "rev-list", *words, "--not", *holders,
            "--branches", "--remotes", "--tags", f"--glob={PREFIX}*",
            cwd=plan.repository,
        )  # fmt: skip


def _owner_head(plan: WorkspacePlan) -> str | None:
    try:
        return ref_files.find_head(plan.checkout, plan.repository)
    except ref_files.UnusualError:
        is_there = Path(plan.checkout).is_dir()
        return git.find_commit("HEAD", cwd=plan.checkout) if is_there else None


def _are_held(plan: WorkspacePlan, tips: list[str]) -> bool:
    """Whether a ref of the owner names each of the commits. Reads files only, which is enough for
    most capsules.
    """
    left = set(tips)
    own = None if plan.branch is None else f"refs/heads/{plan.branch}"
    try:
        left.discard(ref_files.find_head(plan.checkout, plan.repository) or "")
        if left:
            for value in ref_files.values(plan.repository, below=HOLDERS, without=own):
                left.discard(value)
    except ref_files.UnusualError:
        return False
    return not left
