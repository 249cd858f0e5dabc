"""The repositories of a capsule's own submodules, below `.git/modules`, read as data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from atoll.host.beneath import TreeReader
from atoll.host.intake.refs import AgentRefs, load_refs
from atoll.host.merged import MergedTree
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, find_path

_POINTER_BYTES = 1 << 16
_GIT = InsidePath(b".git")
_MODULES = _GIT.child(b"modules")
_MOST_DIRECTORIES = 20_000
_MOST_REFS = 200_000
_MOST_ASKED = 20
_DEEPEST = 50

CommitCheck = Callable[[InsidePath, ObjectId], bool]
"""(where a submodule is, a commit)"""


def find_head(tree: TreeReader, module: InsidePath) -> ObjectId | None:
    """The commit that a submodule of a private repository has checked out."""
    place = _repository_of(tree, module)
    refs = None if place is None else load_refs(tree, place)
    return None if refs is None else refs.head


def find_moved(
    tree: MergedTree, below: TreeReader | None, knows: CommitCheck | None = None
) -> set[InsidePath]:
    """Submodules whose repositories name commits that they did not name in what is `below`, and
    that the owner does not know either, even if their files are as they were: by where the files
    are, or by where the repositories are if no file leads there.

    What is too much to look at counts as moved.
    """
    walk = _Walk(tree)
    changes = tree.changes(skip=walk.skip)
    if walk.is_too_much:
        return {_MODULES}
    files = {*changes.entries, *changes.hidden, *changes.special}
    touched = {path if path.parent == _MODULES else path.parent for path in files}
    touched |= set(changes.closed)
    places = {place for path in touched if path and (place := walk.around(path)) is not None}
    left = _MOST_REFS
    moved = set()
    for place in sorted(places):
        module = _files_of(tree, place)
        now = load_refs(tree, place) if left > 0 else None
        left -= 1 if now is None else len(now.refs) + len(now.stashes) + 1
        if now is None or now.refused or not _is_known(now, below, place, knows, module):
            moved.add(module)
    return moved


class _Walk:
    """Finds the repository that a path below `.git/modules` lies in."""

    def __init__(self, tree: TreeReader) -> None:
        self._tree = tree
        self._around: dict[InsidePath, InsidePath | None] = {}
        self.is_too_much = False

    def skip(self, path: InsidePath, is_directory: bool) -> bool:  # noqa: FBT001 - called so
        """Objects say nothing: what is worth something is named by a ref."""
        if path in (_GIT, _MODULES):
            return False
        self.is_too_much = self.is_too_much or len(self._around) > _MOST_DIRECTORIES
        if self.is_too_much or not path.is_below(_MODULES):
            return True
        if not is_directory:
            return False
        above = path.parent
        if path.name == b"objects" and above is not None and self._is_repository(above):
            return True
        self.around(path)
        self.is_too_much = len(path.parts) > _DEEPEST
        return self.is_too_much

    def around(self, path: InsidePath) -> InsidePath | None:
        """A broken repository is at the top of its directories."""
        if not path.is_below(_MODULES):
            return None
        if path not in self._around:
            above = path.parent
            outer = None if above is None else self.around(above)
            is_one = (
                self._tree.kind(path) is not None if outer is None else self._is_repository(path)
            )
            self._around[path] = path if is_one else outer
        return self._around[path]

    def _is_repository(self, path: InsidePath) -> bool:
        has_head = self._tree.kind(path.child(b"HEAD")) is not None
        return has_head and self._tree.kind(path.child(b"objects")) == "directory"


def _is_known(
    now: AgentRefs,
    below: TreeReader | None,
    place: InsidePath,
    knows: CommitCheck | None,
    module: InsidePath,
) -> bool:
    before = None if below is None else load_refs(below, place)
    if before is None:
        return False
    fresh = set(_tips(now)) - set(_tips(before))
    if knows is None or len(fresh) > _MOST_ASKED:
        return not fresh
    return all(knows(module, commit) for commit in fresh)


def _tips(refs: AgentRefs) -> Iterator[ObjectId]:
    if refs.head is not None:
        yield refs.head
    yield from refs.refs.values()
    yield from refs.stashes
    yield from refs.worktrees


def _files_of(tree: TreeReader, place: InsidePath) -> InsidePath:
    """A submodule's repository is named after the path that it was first at."""
    module = find_path(Untrusted(place.raw.removeprefix(_MODULES.raw + b"/")))
    return place if module is None or _repository_of(tree, module) != place else module


def _repository_of(tree: TreeReader, module: InsidePath) -> InsidePath | None:
    """Where the pointer in a submodule leads to, if that is where its repository belongs."""
    pointer = tree.read(module.child(b".git"), limit_bytes=_POINTER_BYTES) or b""
    named = pointer.removeprefix(b"gitdir: ").rstrip(b"\n")
    place = os.path.normpath(module.raw + b"/" + named)
    path = find_path(Untrusted(place)) if named and not named.startswith(b"/") else None
    return None if path is None or not path.is_below(_MODULES) else path
