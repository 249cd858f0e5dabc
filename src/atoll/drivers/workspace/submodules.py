"""A capsule's own submodules: their files, and their repositories below `.git/modules`, as data."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Protocol

from atoll.host.beneath import TreeReader
from atoll.host.intake.index import parse_index
from atoll.host.intake.refs import AgentRefs, Budget, load_refs
from atoll.host.intake.tree_objects import TreeEntry
from atoll.host.merged import MergedTree
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, find_path

_POINTER_BYTES = 1 << 16
_GIT = InsidePath(b".git")
MODULES = _GIT.child(b"modules")
_SHA1_BYTES = 20
_COMPARED_BYTES = 64 << 20
_INDEX_BYTES = 64 << 20
_INDEX_BYTES_PER_LOOK = 4096
_MOST_LOOKS = 10_000
_DEEPEST = 30
_PARTS_PER_LOOK = 8


class OwnerCheck(Protocol):
    """What is known of a submodule outside of the capsule. A submodule is named by where its files
    are, or by where its repository is if no file leads there.
    """

    def has_all(
        self, module: InsidePath, tips: Collection[ObjectId], *, known: Collection[ObjectId]
    ) -> bool:
        """Whether all of these exist elsewhere; `known` do."""

    def entries(self, module: InsidePath, commit: ObjectId) -> dict[InsidePath, TreeEntry] | None:
        """What a commit tracks; None when that cannot be found out."""


def find_head(tree: TreeReader, module: InsidePath) -> ObjectId | None:
    """The commit that a submodule of a private repository has checked out."""
    place = find_repository(tree, module)
    refs = None if place is None else load_refs(tree, place)
    return None if refs is None else refs.head


def is_submodule(tree: TreeReader, module: InsidePath) -> bool:
    """Whether a repository in the workspace is kept where git keeps those of submodules."""
    place = find_repository(tree, module)
    return place is not None and place.is_below(MODULES)


def has_changed(tree: MergedTree, below: TreeReader, module: InsidePath) -> bool:
    """Whether any of a submodule's files is not as it is in what is `below`: git writes many of
    them anew.
    """

    def skip(path: InsidePath, is_directory: bool) -> bool:  # noqa: FBT001 - called so
        del is_directory
        return not (path.is_below(module) or module.is_below(path))

    changes = tree.changes(skip=skip)
    for path in {*changes.entries, *changes.hidden, *changes.special, *changes.closed}:
        if path.is_below(module):
            now, before = (_content(reader, path) for reader in (tree, below))
            if now is None or now != before:
                return True
    return False


def _content(tree: TreeReader, path: InsidePath) -> tuple[bytes, bool] | None:
    """What is in a file, and whether it can be executed; None for anything else."""
    handle = tree.find_file(path)
    if handle is None:
        return None
    with open(handle, "rb") as stream:
        content = stream.read(_COMPARED_BYTES + 1)
        is_executable = bool(os.fstat(handle).st_mode & 0o100)
    return (content, is_executable) if len(content) <= _COMPARED_BYTES else None


def find_moved(
    tree: MergedTree, below: TreeReader | None, owner: OwnerCheck | None = None
) -> set[InsidePath]:
    """Submodules whose repositories name commits, or stage contents, that they did not in what is
    `below`, and that the owner does not know either, even if their files are as they were: by
    where the files are, or by where the repositories are if no file leads there.

    What is too much to look at, or cannot be read, counts as moved.
    """
    budget = Budget(_MOST_LOOKS)
    walk = _Walk(tree, budget)
    changes = tree.changes(skip=walk.skip)
    touched = {*changes.entries, *changes.hidden, *changes.special, *changes.closed}
    if walk.is_too_deep or budget.is_spent() or MODULES in touched:
        return {MODULES}
    places = {place for path in touched if (place := walk.place_of(path)) is not None}
    moved = set()
    for place in sorted(places):
        module = walk.files_of(place)
        if not _Repository(tree, below, place, budget).is_known(owner, module):
            moved.add(module)
        if budget.is_spent():
            return {MODULES}
    return moved


class _Walk:
    """Finds the repository that a path below `.git/modules` lies in."""

    def __init__(self, tree: TreeReader, budget: Budget) -> None:
        self._tree = tree
        self._budget = budget
        self._around: dict[InsidePath, InsidePath | None] = {}
        self._files: dict[InsidePath, InsidePath] = {}
        self.is_too_deep = False

    def skip(self, path: InsidePath, is_directory: bool) -> bool:  # noqa: FBT001 - called so
        """Objects say nothing: what is worth something is named by a ref."""
        if path in (_GIT, MODULES):
            return False
        if self.is_too_deep or self._budget.is_spent() or not path.is_below(MODULES):
            return True
        if not is_directory:
            return not self._budget.spend()
        above = path.parent
        if path.name == b"objects" and above is not None and self._is_repository(above):
            return True
        self._find_around(path)
        self.is_too_deep = len(path.parts) > _DEEPEST
        return self.is_too_deep

    def place_of(self, path: InsidePath) -> InsidePath | None:
        """Where the repository is that a file, or a directory that cannot be read, belongs to."""
        above = path.parent
        if above is None or not path.is_below(MODULES):
            return None
        outer = self._find_around(above)
        return path if _begins(above, outer) else outer

    def files_of(self, place: InsidePath) -> InsidePath:
        """Where the files of a repository are, which is named after the path that they were first
        at; the repository itself if they are not there.
        """
        if place not in self._files:
            self._files[place] = self._find_files(place)
        return self._files[place]

    def _find_files(self, place: InsidePath) -> InsidePath:
        above = place.parent
        outer = None if above is None else self._find_around(above)
        named = place.raw.removeprefix(MODULES.raw + b"/")
        if outer not in (None, MODULES):
            # Its name is a path in the files of the submodule that it belongs to.
            name = place.raw.removeprefix(outer.raw + b"/modules/")
            named = self.files_of(outer).raw + b"/" + name
        module = find_path(Untrusted(named))
        return place if module is None or find_repository(self._tree, module) != place else module

    def _find_around(self, path: InsidePath) -> InsidePath | None:
        """The repository that a directory belongs to. Below each `modules` the first directory
        counts as one: if it is broken, or only leads to others, it cannot be told.
        """
        if not path.is_below(MODULES):
            return None
        if path not in self._around:
            above = path.parent
            outer = None if above is None else self._find_around(above)
            is_one = _begins(above, outer) or self._is_repository(path)
            self._around[path] = path if is_one else outer
        return self._around[path]

    def _is_repository(self, path: InsidePath) -> bool:
        self._budget.spend(1 + len(path.parts) // _PARTS_PER_LOOK)
        has_head = self._tree.kind(path.child(b"HEAD")) is not None
        return has_head and self._tree.kind(path.child(b"objects")) == "directory"


def _begins(above: InsidePath | None, outer: InsidePath | None) -> bool:
    """Whether a repository is expected in `above`, which belongs to `outer`."""
    return outer is None or above == outer.child(b"modules")


class _Repository:
    """That of a submodule, now and in what is `below`."""

    def __init__(
        self, tree: TreeReader, below: TreeReader | None, place: InsidePath, budget: Budget
    ) -> None:
        self._tree = tree
        self._below = below
        self._place = place
        self._budget = budget

    def is_known(self, owner: OwnerCheck | None, module: InsidePath) -> bool:
        """Whether all that it names was there before, or exists elsewhere."""
        before = None if self._below is None else load_refs(self._below, self._place)
        now = load_refs(self._tree, self._place, self._budget)
        if now is None or now.refused or (before is None and owner is None):
            return False
        known = set(() if before is None else _tips(before))
        fresh = set(_tips(now)) - known
        if fresh and (owner is None or not owner.has_all(module, fresh, known=known)):
            return False
        return self._stages_nothing_new(now, owner, module)

    def _stages_nothing_new(
        self, now: AgentRefs, owner: OwnerCheck | None, module: InsidePath
    ) -> bool:
        content, before = (
            None if tree is None else tree.read(self._place.child(b"index"), limit_bytes=limit)
            for tree, limit in ((self._tree, _INDEX_BYTES), (self._below, 2 * _INDEX_BYTES))
        )
        if content is None:
            return self._tree.kind(self._place.child(b"index")) is None
        if content == before:
            return True
        if not self._budget.spend(len(content) // _INDEX_BYTES_PER_LOOK):
            return False
        id_bytes = len(now.head or "") // 2 or _SHA1_BYTES
        staged, known = (
            None if text is None else parse_index(text, id_bytes=id_bytes)
            for text in (content, before)
        )
        if staged is None:
            return False
        fresh = {(e.path, e.object_id) for e in staged} - {
            (e.path, e.object_id) for e in known or ()
        }
        if not fresh:
            return True
        held = None if owner is None or now.head is None else owner.entries(module, now.head)
        return held is not None and fresh <= {(path, e.object_id) for path, e in held.items()}


def _tips(refs: AgentRefs) -> Iterator[ObjectId]:
    if refs.head is not None:
        yield refs.head
    yield from refs.refs.values()
    yield from refs.fetched.values()
    yield from refs.stashes
    yield from refs.worktrees


def find_repository(tree: TreeReader, module: InsidePath) -> InsidePath | None:
    """The repository of a submodule: a directory `.git` in it, or where the pointer in its place
    leads to, if that is where repositories of submodules belong.
    """
    link = module.child(b".git")
    if tree.kind(link) == "directory":
        return link
    pointer = tree.read(link, limit_bytes=_POINTER_BYTES) or b""
    named = pointer.removeprefix(b"gitdir: ").rstrip(b"\n")
    place = os.path.normpath(module.raw + b"/" + named)
    path = find_path(Untrusted(place)) if named and not named.startswith(b"/") else None
    return None if path is None or not path.is_below(MODULES) else path
