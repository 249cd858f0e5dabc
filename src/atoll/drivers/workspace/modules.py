"""The repositories of a capsule's own submodules, below `.git/modules`, read as data."""

from __future__ import annotations

import os
from collections.abc import Iterator

from atoll.host.beneath import TreeReader
from atoll.host.intake.refs import AgentRefs, load_refs
from atoll.host.merged import MergedTree
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, find_path

_POINTER_BYTES = 1 << 16
_GIT = InsidePath(b".git")
_MODULES = _GIT.child(b"modules")


def find_head(tree: TreeReader, module: InsidePath) -> ObjectId | None:
    """The commit that a submodule of a private repository has checked out."""
    place = _repository_of(tree, module)
    refs = None if place is None else load_refs(tree, place)
    return None if refs is None else refs.head


def find_moved(tree: MergedTree, below: TreeReader | None) -> set[InsidePath]:
    """Submodules whose repositories name commits that they did not name in what is `below`, even
    if their files are as they were: by where the files are, or by where the repositories are if no
    file leads there.
    """
    changes = tree.changes(skip=_is_elsewhere)
    touched = [*changes.entries, *changes.hidden, *changes.special, *changes.closed]
    places = {place for path in touched if (place := _around(tree, path)) is not None}
    return {_files_of(tree, place) for place in places if _is_moved(tree, below, place)}


def _is_elsewhere(path: InsidePath, is_directory: bool) -> bool:  # noqa: FBT001 - called so
    del is_directory
    return path not in (_GIT, _MODULES) and not path.is_below(_MODULES)


def _around(tree: TreeReader, path: InsidePath) -> InsidePath | None:
    """The repository in which a path lies; a broken one is at the top of its directories."""
    if not path.is_below(_MODULES):
        return None
    above = [place for place in (path, *path.parents()) if place.is_below(_MODULES)]
    for place in sorted(above, key=lambda place: len(place.parts), reverse=True):
        if tree.kind(place.child(b"HEAD")) and tree.kind(place.child(b"objects")) == "directory":
            return place
    top = min(above, key=lambda place: len(place.parts))
    return top if tree.kind(top) == "directory" else None


def _is_moved(tree: MergedTree, below: TreeReader | None, place: InsidePath) -> bool:
    now = load_refs(tree, place)
    before = None if below is None else load_refs(below, place)
    if now is None or now.refused or before is None:
        return True
    return not set(_tips(now)) <= set(_tips(before))


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
