"""Brings out the commits of submodules that a capsule's commits record.

They go into the owner's own repository of the submodule, through the same quarantine as the commits
of the project, and are kept there by refs below `refs/atoll/commits/`. So `git submodule update`
finds them after a merge. Submodules of submodules are treated alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers import standins
from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.drivers.workspace import owner_modules
from atoll.drivers.workspace.submodules import MODULES
from atoll.drivers.workspace.survey import GITLINK
from atoll.host import git
from atoll.host.beneath import TreeReader
from atoll.host.intake import comparison
from atoll.host.intake.content import tracked_below
from atoll.host.intake.large import LargeBudget, LargeFiles, bring_large_files
from atoll.host.intake.objects import import_objects
from atoll.host.intake.store import Store, open_store, scratch_directory
from atoll.host.transfer import Allowance, Brought, IncompleteError, OverLimitError
from atoll.model.errors import DriverError, StateError
from atoll.model.plan import WorkspacePlan
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, find_object_id, find_path

KEPT = "refs/atoll/commits/"
_DEEPEST = 8
_MOST_LINKS = 1_000
_MOST_COMMITS = 1_000
_RAW_BYTES = 16 << 20
_NOWHERE = "neither the capsule nor your repository has all of that commit"


class Link(NamedTuple):
    """A submodule as a commit records it."""

    path: InsidePath
    """From the top of the project, also for a submodule of a submodule."""
    before: ObjectId | None
    commit: ObjectId


class Unresolved(NamedTuple):
    """A recorded commit that the owner does not have and that could not be brought."""

    path: InsidePath
    commit: ObjectId
    why: str
    is_used: bool
    """Whether the owner or the capsule has a repository of the submodule. If neither has, nothing
    is lost, and the owner's git asks for it where the submodule comes from."""
    hint: str = ""


class Modules(NamedTuple):
    unresolved: tuple[Unresolved, ...] = ()
    large: LargeFiles = LargeFiles()


def bring_modules(
    plan: WorkspacePlan,
    tree: TreeReader,
    store: Store,
    tips: Sequence[str],
    *,
    scratch: Path,
    budget: LargeBudget,
) -> Modules:
    """Brings what commits record beyond the base commit. Raises StateError or DriverError for
    what is wrong with the project's own commits; what is wrong with a submodule is returned.

    If anything is, no repository stays that was made for a submodule: the commits are not going to
    be the owner's, and may never be.
    """
    links = list(dict.fromkeys(_recorded(plan, store, tips)))
    if len(links) > _MOST_LINKS:
        raise StateError(f"the commits record more than {_MOST_LINKS} states of submodules")
    bringer = _Bringer(plan, tree, scratch, budget)
    try:
        bringer.bring(links, depth=0)
    except BaseException:
        bringer.drop_made()
        raise
    if any(it.is_used for it in bringer.unresolved):
        bringer.drop_made()
    return Modules(tuple(bringer.unresolved), _joined(bringer.large))


def _recorded(plan: WorkspacePlan, store: Store, tips: Sequence[str]) -> Iterator[Link]:
    found = False
    # A stand-in has nothing of what the base commit records.
    base = None if standins.is_standin(plan) else plan.base_commit
    for tip in tips:
        for link in _all_links(store, tip) if base is None else _links(store, base, tip):
            found = True
            yield link
    if found:
        yield from _recorded_between(plan, store, tips)


def _links(store: Store, old: str, new: str) -> Iterator[Link]:
    for path, (before, after) in comparison.difference(store, old, new).items():
        if after is not None and after.mode == GITLINK:
            known = before.object_id if before is not None and before.mode == GITLINK else None
            yield Link(path, known, after.object_id)


def _all_links(store: Store, commit: str) -> list[Link]:
    tracked = tracked_below(store, commit, None).items()
    return [Link(path, None, e.object_id) for path, e in tracked if e.mode == GITLINK]


def _recorded_between(plan: WorkspacePlan, store: Store, tips: Sequence[str]) -> Iterator[Link]:
    """What commits between the base and the tips record, as far as it is within bounds: a step in
    the middle of a history that the last commit does not lead to.
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
                yield Link(path, None, commit)


def _joined(found: Iterable[LargeFiles]) -> LargeFiles:
    parts = list(found)
    return LargeFiles(
        sum(part.brought for part in parts),
        tuple(path for part in parts for path in part.missing),
        tuple(path for part in parts for path in part.refused),
    )


class _Bringer:
    def __init__(
        self, plan: WorkspacePlan, tree: TreeReader, scratch: Path, budget: LargeBudget
    ) -> None:
        self._plan, self._tree, self._scratch, self._budget = plan, tree, scratch, budget
        self.unresolved: list[Unresolved] = []
        self.large: list[LargeFiles] = []
        self._seen: set[tuple[InsidePath, ObjectId]] = set()
        self._made: list[str] = []
        self._allowance = Allowance()

    def drop_made(self) -> None:
        """Removes the repositories that were made; the last first, which may lie in others."""
        while self._made:
            owner_modules.drop_place(self._plan, self._made.pop())

    def bring(self, links: Iterable[Link], *, depth: int) -> None:
        for link in links:
            if (link.path, link.commit) in self._seen:
                continue
            self._seen.add((link.path, link.commit))
            try:
                self._bring(link, depth)
            except (StateError, DriverError) as error:
                found = Unresolved(link.path, link.commit, error.message, is_used=True)
                self.unresolved.append(found._replace(hint=error.hint or ""))

    def _bring(self, link: Link, depth: int) -> None:
        if depth > _DEEPEST:
            raise StateError(f"`{link.path.shown()}` lies in too many submodules")
        place = owner_modules.find_place(self._plan, self._tree, link.path)
        if place.owner is not None and owner_modules.is_kept(place.owner, link.commit):
            return
        if place.inside is None:
            self._resolve_without(place.owner, link)
            return
        owner = place.owner or self._make_place(place.inside)
        try:
            self._import(owner, place.inside, link)
        except (StateError, DriverError) as error:
            if place.owner is not None and owner_modules.has_object(
                owner, f"{link.commit}^{{commit}}"
            ):
                _keep(owner, link.commit)
                return
            if isinstance(error, IncompleteError):
                raise StateError(_NOWHERE) from error
            raise
        self._bring_parts(owner, place.inside, link, depth)
        _keep(owner, link.commit)

    def _make_place(self, inside: InsidePath) -> str:
        made = owner_modules.make_place(self._plan, inside)
        self._made.append(made)
        return made

    def _resolve_without(self, owner: str | None, link: Link) -> None:
        """The capsule has no repository for it."""
        if owner is not None and owner_modules.has_object(owner, f"{link.commit}^{{commit}}"):
            _keep(owner, link.commit)
            return
        found = Unresolved(link.path, link.commit, _NOWHERE, is_used=owner is not None)
        self.unresolved.append(found)

    def _import(self, owner: str, inside: InsidePath, link: Link) -> None:
        known = [] if link.before is None else [link.before]
        limits = self._allowance.limits()
        with self._visible(inside) as history:
            try:
                taken = import_objects(
                    self._tree, owner, [link.commit],
                    known=known, limits=limits, at=inside, history=history,
                )  # fmt: skip
            except OverLimitError as error:
                raise self._allowance.exceeded() from error
        self._allowance.spend(Brought(taken.objects, taken.size_bytes))

    @contextmanager
    def _visible(self, inside: InsidePath) -> Iterator[Path]:
        """The objects that the capsule was given for a submodule: those of a frozen layer."""
        pool = Pool(self._plan.pool)
        for layer in self._plan.layers:
            place = pool.tree(layer) / WORKSPACE / os.fsdecode(inside.raw) / "objects"
            # Files of a submodule may be links; nothing below `.git/modules` is one.
            if layer.startswith("m") and inside.is_below(MODULES) and (place / "info").is_dir():
                yield place
                return
        with scratch_directory(self._scratch) as empty:
            (empty / "info").mkdir()
            yield empty

    def _bring_parts(self, owner: str, inside: InsidePath, link: Link, depth: int) -> None:
        """What the submodule's commits refer to in their turn."""
        with open_store(owner, scratch=self._scratch) as store:
            known = [] if link.before is None else [link.before]
            large = bring_large_files(
                store, self._tree, [link.commit], known=known, at=inside, root=link.path,
                budget=self._budget,
            )  # fmt: skip
            self.large.append(large)
            self.bring(_below(store, link), depth=depth + 1)


def _below(store: Store, link: Link) -> Iterator[Link]:
    """The submodules of a submodule."""
    if link.before is not None:
        found: Iterable[Link] = _links(store, link.before, link.commit)
    else:
        found = _all_links(store, link.commit)
    for path, before, commit in found:
        yield Link(InsidePath(link.path.raw + b"/" + path.raw), before, commit)


def _keep(owner: str, commit: ObjectId) -> None:
    """Names a commit, so that `git gc` in the owner's submodule does not remove it."""
    with git.turn(owner):
        git.set_ref(KEPT + commit, commit, cwd=owner)
