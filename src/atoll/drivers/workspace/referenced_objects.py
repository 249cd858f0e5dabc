"""Imports what a capsule's commits refer to: Git LFS objects, and submodule commits.

LFS objects go into the owner's LFS store. Submodule commits go into the owner's repository of the
submodule, through the same quarantine as the project's commits, and are kept there by refs below
`refs/atoll/commits/`, so that `git submodule update` finds them after a merge. Nested submodules
are treated alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers import stand_in_repositories
from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.drivers.workspace import submodules
from atoll.drivers.workspace.file_status import GITLINK, WorkspaceFiles
from atoll.drivers.workspace.submodules import MODULES
from atoll.host import git
from atoll.host.beneath import TreeReader
from atoll.host.intake import comparison
from atoll.host.intake.blob_filters import tracked_below
from atoll.host.intake.commit_import import import_objects
from atoll.host.intake.lfs_objects import LfsBudget, LfsImport, WrongObjects, import_lfs_objects
from atoll.host.intake.store import IntakeRepository, open_store, scratch_directory
from atoll.host.intake.transfer import Allowance, ImportSize, IncompleteError, OverLimitError
from atoll.model.errors import DriverError, StateError
from atoll.model.layers import LayerKind
from atoll.model.plan import WorkspacePlan
from atoll.model.secretvalues import SecretSearch
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, find_object_id, find_path

_DEEPEST = 8
_MOST_LINKS = 1_000
_MOST_COMMITS = 1_000
_RAW_BYTES = 16 << 20
_NOWHERE = "neither the capsule nor your repository has this commit completely"


class RecordedSubmodule(NamedTuple):
    """A submodule as recorded by a commit."""

    path: InsidePath
    """From the project's root, also for a nested submodule."""
    before: ObjectId | None
    commit: ObjectId


class Unresolved(NamedTuple):
    """A recorded commit that the owner does not have and that could not be imported."""

    path: InsidePath
    commit: ObjectId
    why: str
    is_used: bool
    """Whether the owner or the capsule has a repository of the submodule. If neither has, nothing
    is lost: the owner's git fetches it from the submodule's URL."""
    hint: str = ""


class Modules(NamedTuple):
    unresolved: tuple[Unresolved, ...] = ()
    large: LfsImport = LfsImport()


def export_modules(
    plan: WorkspacePlan,
    tree: TreeReader,
    store: IntakeRepository,
    tips: Sequence[str],
    *,
    scratch: Path,
    budget: LfsBudget,
) -> Modules:
    """Imports the submodule commits recorded since the base commit. Raises StateError or
    DriverError for problems of the project's commits; problems of submodules are returned.

    With any problem, repositories created for submodules are removed again: the commits may never
    become the owner's.
    """
    links = list(dict.fromkeys(_recorded(plan, store, tips)))
    if len(links) > _MOST_LINKS:
        raise StateError(f"the commits record more than {_MOST_LINKS} submodule states")
    exporting = _ModuleExport(plan, tree, scratch, budget)
    try:
        exporting.export(links, depth=0)
    except BaseException:
        exporting.drop_made()
        raise
    if any(it.is_used for it in exporting.unresolved):
        exporting.drop_made()
    return Modules(tuple(exporting.unresolved), _joined(exporting.large))


def _recorded(
    plan: WorkspacePlan, store: IntakeRepository, tips: Sequence[str]
) -> Iterator[RecordedSubmodule]:
    found = False
    # A stand-in lacks everything that the base commit records.
    base = None if stand_in_repositories.is_standin(plan) else plan.base_commit
    for tip in tips:
        for link in _all_links(store, tip) if base is None else _links(store, base, tip):
            found = True
            yield link
    if found:
        yield from _recorded_between(plan, store, tips)


def _links(store: IntakeRepository, old: str, new: str) -> Iterator[RecordedSubmodule]:
    for path, (before, after) in comparison.difference(store, old, new).items():
        if after is not None and after.mode == GITLINK:
            known = before.object_id if before is not None and before.mode == GITLINK else None
            yield RecordedSubmodule(path, known, after.object_id)


def _all_links(store: IntakeRepository, commit: str) -> list[RecordedSubmodule]:
    tracked = tracked_below(store, commit, None).items()
    return [RecordedSubmodule(path, None, e.object_id) for path, e in tracked if e.mode == GITLINK]


def _recorded_between(
    plan: WorkspacePlan, store: IntakeRepository, tips: Sequence[str]
) -> Iterator[RecordedSubmodule]:
    """What commits between the base and the tips record, within limits: intermediate states that
    are not reachable from the last commit.
    """
    asked = "".join(f"{name}\n" for name in (*tips, f"^{plan.base_commit}")).encode()
    store.flush()
    try:
        listed = store.run("rev-list", "--stdin", f"--max-count={_MOST_COMMITS}", stdin=asked)
        raw = store.run(
            "diff-tree", "--stdin", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", "--root",
            stdin=listed, limit_bytes=_RAW_BYTES,
        ).split(b"\0")  # fmt: skip
    except (StateError, DriverError):
        return
    for head, name in pairwise(raw):
        words = head.removeprefix(b":").split(b" ")
        if head.startswith(b":") and len(words) > 3 and words[1] == b"160000":
            path, commit = find_path(Untrusted(name)), find_object_id(Untrusted(words[3]))
            if path is not None and commit is not None:
                yield RecordedSubmodule(path, None, commit)


def _joined(found: Iterable[LfsImport]) -> LfsImport:
    parts = list(found)
    return LfsImport(
        sum(part.brought for part in parts),
        tuple(path for part in parts for path in part.missing),
        tuple(path for part in parts for path in part.refused),
    )


class _ModuleExport:
    def __init__(
        self, plan: WorkspacePlan, tree: TreeReader, scratch: Path, budget: LfsBudget
    ) -> None:
        self._plan, self._tree, self._scratch, self._budget = plan, tree, scratch, budget
        self.unresolved: list[Unresolved] = []
        self.large: list[LfsImport] = []
        self._seen: set[tuple[InsidePath, ObjectId]] = set()
        self._made: list[str] = []
        self._allowance = Allowance()

    def drop_made(self) -> None:
        """Removes the created repositories, last first: they may be nested."""
        while self._made:
            submodules.drop_place(self._plan, self._made.pop())

    def export(self, links: Iterable[RecordedSubmodule], *, depth: int) -> None:
        for link in links:
            if (link.path, link.commit) in self._seen:
                continue
            self._seen.add((link.path, link.commit))
            try:
                self._export(link, depth)
            except (StateError, DriverError) as error:
                found = Unresolved(link.path, link.commit, error.message, is_used=True)
                self.unresolved.append(found._replace(hint=error.hint or ""))

    def _export(self, link: RecordedSubmodule, depth: int) -> None:
        if depth > _DEEPEST:
            raise StateError(f"`{link.path.shown()}` is nested in too many submodules")
        place = submodules.find_place(self._plan, self._tree, link.path)
        if place.owner is not None and submodules.is_kept(place.owner, link.commit):
            return
        if place.inside is None:
            self._resolve_without(place.owner, link)
            return
        owner = place.owner or self._make_place(place.inside)
        try:
            self._import(owner, place.inside, link)
        except (StateError, DriverError) as error:
            if place.owner is not None and submodules.has_object(
                owner, f"{link.commit}^{{commit}}"
            ):
                _keep(owner, link.commit)
                return
            if isinstance(error, IncompleteError):
                raise StateError(_NOWHERE) from error
            raise
        self._export_parts(owner, place.inside, link, depth)
        _keep(owner, link.commit)

    def _make_place(self, inside: InsidePath) -> str:
        made = submodules.make_place(self._plan, inside)
        self._made.append(made)
        return made

    def _resolve_without(self, owner: str | None, link: RecordedSubmodule) -> None:
        """For a submodule without a repository in the capsule."""
        if owner is not None and submodules.has_object(owner, f"{link.commit}^{{commit}}"):
            _keep(owner, link.commit)
            return
        found = Unresolved(link.path, link.commit, _NOWHERE, is_used=owner is not None)
        self.unresolved.append(found)

    def _import(self, owner: str, inside: InsidePath, link: RecordedSubmodule) -> None:
        known = [] if link.before is None else [link.before]
        limits = self._allowance.limits()
        with self._visible(inside) as history:
            try:
                taken = import_objects(
                    self._tree, owner, [link.commit],
                    known=known, limits=limits, at=inside, history=history,
                    search=self._budget.search,
                )  # fmt: skip
            except OverLimitError as error:
                raise self._allowance.exceeded() from error
        self._allowance.spend(ImportSize(taken.objects, taken.size_bytes))

    @contextmanager
    def _visible(self, inside: InsidePath) -> Iterator[Path]:
        """The objects that the capsule was given for a submodule, from a frozen layer."""
        pool = Pool(self._plan.pool)
        for layer in self._plan.layers:
            place = pool.tree(layer) / WORKSPACE / os.fsdecode(inside.raw) / "objects"
            # Files of a submodule may be links; below `.git/modules` there are none.
            if (
                LayerKind.SUBMODULES.matches(layer)
                and inside.is_below(MODULES)
                and (place / "info").is_dir()
            ):
                yield place
                return
        with scratch_directory(self._scratch) as empty:
            (empty / "info").mkdir()
            yield empty

    def _export_parts(
        self, owner: str, inside: InsidePath, link: RecordedSubmodule, depth: int
    ) -> None:
        """Imports what the submodule's commits refer to."""
        with open_store(owner, scratch=self._scratch) as store:
            known = [] if link.before is None else [link.before]
            large = import_lfs_objects(
                store, self._tree, [link.commit], known=known, at=inside, root=link.path,
                budget=self._budget,
            )  # fmt: skip
            self.large.append(large)
            self.export(_below(store, link), depth=depth + 1)


def _below(store: IntakeRepository, link: RecordedSubmodule) -> Iterator[RecordedSubmodule]:
    """The submodules nested in a submodule."""
    if link.before is not None:
        found: Iterable[RecordedSubmodule] = _links(store, link.before, link.commit)
    else:
        found = _all_links(store, link.commit)
    for path, before, commit in found:
        yield RecordedSubmodule(InsidePath(link.path.raw + b"/" + path.raw), before, commit)


def _keep(owner: str, commit: ObjectId) -> None:
    """Creates a ref, so that `git gc` in the owner's submodule keeps the commit."""
    with git.turn(owner):
        git.set_ref(stand_in_repositories.COMMITS + commit, commit, cwd=owner)


_WRONG_OBJECTS = "wrong-lfs-objects.json"


class Parts(NamedTuple):
    large: LfsImport = LfsImport()
    modules: Modules = Modules()

    def notes(self) -> tuple[str, ...]:
        """Warnings for the owner."""
        unused = [_sentence(it) for it in self.modules.unresolved if not it.is_used]
        return (*self.large.notes(), *self.modules.large.notes(), *unused)

    def require_whole(self) -> None:
        """Raises StateError if a submodule commit is missing that the owner would need."""
        for it in self.modules.unresolved:
            if it.is_used:
                path = it.path.shown()
                raise StateError(
                    _sentence(it),
                    hint=it.hint
                    or f"git submodule update --init {path} and git -C {path} fetch, or inside "
                    f"the capsule: git submodule update {path}; then export again",
                )

    @property
    def refused(self) -> tuple[str, ...]:
        """Git LFS objects that only the capsule has."""
        return (*self.large.refused, *self.modules.large.refused)


def _sentence(it: Unresolved) -> str:
    return f"the submodule `{it.path.shown()}` is recorded at {it.commit[:10]}: {it.why}"


def export_parts(
    plan: WorkspacePlan,
    workspace: WorkspaceFiles,
    store: IntakeRepository,
    tips: Sequence[str],
    *,
    scratch: Path,
    search: SecretSearch | None = None,
) -> Parts:
    """Imports what commits refer to beyond the base commit.

    Includes what was exported before: an earlier version may have exported it without LFS objects
    and submodules. Raises StateError if something new contains what `search` finds.
    """
    fresh = [tip for tip in dict.fromkeys(tips) if tip != plan.base_commit]
    # Shared by all capsules of the project while it has a base.
    budget = LfsBudget(plan.disk_bytes, wrong=WrongObjects(scratch / _WRONG_OBJECTS), search=search)
    known = [plan.base_commit]
    return Parts(
        import_lfs_objects(store, workspace.tree, fresh, known=known, budget=budget),
        export_modules(plan, workspace.tree, store, fresh, scratch=scratch, budget=budget),
    )
