"""What exists only in a workspace: its files and commits, looked at on the host, as data.

Everything is decided from files (`survey.py`); a `Site` says where they are and how the commits in
them come to the owner's repository.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from atoll.drivers.workspace import checkouts
from atoll.drivers.workspace.parts import Parts
from atoll.drivers.workspace.submodules import OwnerCheck
from atoll.drivers.workspace.survey import Survey, Workspace, compare, survey
from atoll.host import git, ref_files
from atoll.host.intake.content import tracked_below
from atoll.host.intake.index import Staged
from atoll.host.intake.store import Store
from atoll.host.points import PREFIX
from atoll.host.process import Completed
from atoll.model.errors import AtollError, DriverError, PrerequisiteError, StateError
from atoll.model.plan import WorkspacePlan
from atoll.model.state import WHOLE, Work
from atoll.model.untrusted import InsidePath, ObjectId

UNREADABLE = (StateError, DriverError, PrerequisiteError, OSError)
HOLDERS = ("refs/heads/", "refs/remotes/", "refs/tags/", PREFIX)
"""What keeps commits of the owner's repository."""


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
    stashes: tuple[ObjectId, ...] = ()
    """Those of the tips that are stash entries, newest first."""
    fetched: tuple[ObjectId, ...] = ()
    """Those of the tips that only remote-tracking refs name."""


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

    def bring_parts(self, workspace: Workspace, store: Store, tips: Sequence[str]) -> Parts:
        """Brings out what commits refer to without holding it: Git LFS objects and commits of
        submodules. The store sees the commits. Raises StateError or DriverError.
        """

    def staged(self, workspace: Workspace) -> tuple[Staged, ...] | None:
        """The index; None when it cannot be read, or is as the workspace was made with."""

    def visible(self, names: Collection[ObjectId]) -> set[ObjectId]:
        """Those of the blobs that the capsule can read in the history that it was given."""

    def committed(self) -> list[str]:
        """The commits that are the capsule's and in the owner's repository already."""

    def is_changed_module(
        self, workspace: Workspace, path: InsidePath, commit: ObjectId, before: ObjectId | None
    ) -> bool:
        """Whether a submodule that is recorded at `commit` holds something that the owner's copy of
        it does not have; the base commit recorded it at `before`.
        """

    def owner_check(self, workspace: Workspace) -> OwnerCheck:
        """What is known of submodules outside of the capsule."""

    def lost_submodules(self, workspace: Workspace, store: Store, head: str) -> list[InsidePath]:
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
    trouble: Exception | None = None
    """What kept some of it from being looked at."""

    @property
    def may_pass(self) -> bool:
        """Whether another attempt may see more: a program was killed, or something was written."""
        return isinstance(self.trouble, (DriverError, OSError))


def branch_commits(plan: WorkspacePlan) -> list[str]:
    """Where the capsule's branch stands in the owner's repository, if it is there."""
    ref = None if plan.branch is None else f"refs/heads/{plan.branch}"
    tip = None if ref is None else git.find_ref(ref, cwd=plan.repository)
    return [] if tip is None else [tip]


def find_work(site: Site) -> Work:
    if not Path(site.plan.repository).is_dir():
        return Work(nested=WHOLE if site.is_there() else ())
    if not site.is_there():
        return Work(commits=_lonely_commits(site, site.committed()))
    try:
        with examined(site) as it:
            return it.work
    except UNREADABLE:
        return _unexamined(site)


def _unexamined(site: Site) -> Work:
    """What cannot be looked at may hold anything."""
    return Work(commits=_lonely_commits(site, site.committed()), nested=WHOLE)


@contextmanager
def examined(site: Site) -> Iterator[Examined]:
    """Looks at a workspace that is there, and whose owner's repository is.

    Whatever the capsule did to its files and commits, an answer comes: at worst that all of it has
    to be kept as files. Raises one of `UNREADABLE` when not even its top can be opened.
    """
    with site.opened() as (workspace, store):
        taken, trouble = _take(site, workspace)
        if taken is None:
            work = Work(commits=_lonely_commits(site, site.committed()), nested=WHOLE)
            yield Examined(work, workspace, store, trouble=trouble)
            return
        lonely = _lonely_work(site, taken)
        left_behind = _left_behind(site, workspace, store, taken.tips)
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


def _look(site: Site, workspace: Workspace, store: Store, taken: Taken) -> tuple[Work, Survey]:
    """The files, compared with HEAD."""
    absent, staged = _left_out(site, workspace), staged_paths(site, workspace)
    seen = survey(
        store, workspace, site.plan.base_commit,
        also=taken.head, staged=staged, absent=absent, is_changed=site.is_changed_module,
        owner=site.owner_check(workspace),
    )  # fmt: skip
    against = compare(store, seen, taken.head, staged=staged)
    if site.plan.is_dirty:
        against = checkouts.without_held(Path(site.plan.checkout), store, seen, against)
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


def _take(site: Site, workspace: Workspace) -> tuple[Taken | None, AtollError | None]:
    """What is committed, and why some of it is refused, incomplete or broken: that is only in the
    capsule's files.
    """
    trouble: AtollError | None = None
    for everything in (True, False):
        try:
            return site.take(workspace, everything=everything), trouble
        except (StateError, DriverError) as error:
            trouble = trouble or error
    return None, trouble


def _left_behind(
    site: Site, workspace: Workspace, store: Store, tips: Sequence[str]
) -> tuple[str, ...]:
    """Git LFS objects that commits refer to and that are in the capsule's files only."""
    try:
        return site.bring_parts(workspace, store, tips).refused
    except (StateError, DriverError):
        return WHOLE


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


def staged_only(
    site: Site, workspace: Workspace, store: Store, seen: Survey, head: str
) -> tuple[str, ...]:
    """What is staged and neither in HEAD nor in the files: of this only the index knows. What
    `--dirty` brought is left out as long as the owner has it staged, too.
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
        owners = checkouts.staged_by_owner(Path(site.plan.checkout))
        only = [entry for entry in only if (entry.path.raw, entry.object_id) not in owners]
    # A conflict has up to three sides.
    return tuple(dict.fromkeys(entry.path.shown() for entry in only))


def _lonely_work(site: Site, taken: Taken) -> Work:
    """The commits that only the capsule holds, by where they are."""
    tips = list(dict.fromkeys([*taken.tips, *site.committed()]))
    every = _lonely_commits(site, tips)
    if not every:
        return Work()
    others = [tip for tip in tips if tip not in taken.stashes]
    commits = _lonely_commits(site, others) if taken.stashes else every
    own = [*site.committed(), *([] if taken.branch is None else [taken.branch])]
    is_off = not set(others) <= set(own)
    stashes = 0
    if every > commits:
        listed = _list_lonely(site, taken.stashes).lines
        stashes = len(set(taken.stashes).intersection(listed)) or 1
    off_branch = commits - _lonely_commits(site, own) if is_off else 0
    rest = list(dict.fromkeys([*own, *(tip for tip in others if tip not in taken.fetched)]))
    fetched = commits - _lonely_commits(site, rest) if off_branch and taken.fetched else 0
    return Work(commits=commits, stashes=stashes, off_branch=off_branch, fetched=fetched)


def _lonely_commits(site: Site, tips: list[str]) -> int:
    if not tips or _are_held(site.plan, tips):
        return 0
    return int(_list_lonely(site, ["--count", *tips]).text)


def _list_lonely(site: Site, words: Sequence[str]) -> Completed:
    plan = site.plan
    owner = _owner_head(plan)
    holders = [owner] if owner is not None else []
    holders += [f"--exclude={plan.branch}"] if plan.branch is not None else []
    # A branch that another removal deletes while it is listed would be a bad object.
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
    """Whether a ref of the owner's names each of the commits: a look at files can tell that much,
    and for most capsules it is enough.
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
