"""Git LFS objects that are kept with recovery points.

A ref keeps a point's commits from `git gc`, but nothing in a repository keeps their LFS objects:
`git lfs prune` only looks at branches, tags, the stash and worktrees. So those that a point needs
beyond its base commit lie beside its description, below Atoll's home, for as long as the point is
there. They are hard links to the owner's objects where the file system has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from atoll.host import files, git
from atoll.host.intake import comparison
from atoll.host.intake.large import copy_objects, find_pointers
from atoll.host.intake.store import Store, open_store
from atoll.host.lfs import LfsStore
from atoll.host.points import PREFIX, Shelf, recovered_tree
from atoll.model.errors import StateError
from atoll.model.lfs import Pointer
from atoll.model.state import RecoveryPoint

_WHAT = "the Git LFS objects of the recovery point"


def keep(shelf: Shelf, store: Store, point: str, commit: str, *, base: str) -> None:
    """Keeps the objects that `commit` needs beyond `base` and that the owner has. They are complete
    when this returns. Raises DriverError when a git fails or the disk is full.
    """
    source = LfsStore.of(shelf.repository, store.settings.lfs_storage)
    if not source.objects.is_dir():
        return
    try:
        found = find_pointers(store, [commit], known=[base])
    except StateError:
        # More than are ever brought out of a capsule, whose files are kept then.
        return
    _add(shelf, point, source, found)


def _add(shelf: Shelf, point: str, source: LfsStore, found: Iterable[Pointer]) -> None:
    place = shelf.objects_of(point)
    target = LfsStore(place / "objects", _WHAT)
    for pointer in found:
        if source.has(pointer):
            files.make_private_directory(place)
            target.add(pointer, source)


def put_back(shelf: Shelf, point: RecoveryPoint, *, scratch: Path) -> tuple[str, ...]:
    """Brings objects that a point needs back into the owner's store, and keeps those that a point
    of an earlier version did not keep. Returns the paths of those that are nowhere. Raises
    DriverError when a git fails or the disk is full.
    """
    kept = [LfsStore(place / "objects") for place in shelf.all_objects_of(point.id)]
    with open_store(shelf.repository, scratch=scratch) as store:
        target = LfsStore.of(shelf.repository, store.settings.lfs_storage)
        try:
            own = find_pointers(store, [point.commit], known=[point.base_commit])
            # The files of the base are not the point's, but they are restored with it.
            tree = comparison.tree_of(store, recovered_tree(point))
            given = find_pointers(store, [tree], known=())
        except StateError:
            # Too many to be listed: all that there are.
            own, given = dict.fromkeys(p for source in kept for p in source.all()), {}
        missing = copy_objects(kept, target, (given | own).items())
        _add(shelf, point.id, target, own)
    return missing


def sweep(shelf: Shelf, *, is_busy: Callable[[str], bool], dry_run: bool) -> list[Path]:
    """Removes what is kept for points that do not exist, because a removal or a drop was killed or
    somebody deleted the ref. `is_busy` says whether a capsule of a name is there or being removed:
    then its point may be a moment away.
    """
    found = [(place, f"{place.parent.name}/{place.stem}") for place in shelf.all_objects()]
    found = [(place, point) for place, point in found if not is_busy(place.parent.name)]
    # Asked after that: a removal that has ended meanwhile has written its ref.
    known = {ref for ref, _ in git.refs_below(PREFIX, cwd=shelf.repository)} if found else set()
    lost = [place for place, point in found if PREFIX + point not in known]
    for place in lost if not dry_run else ():
        files.remove_tree(place, within=shelf.notes)
    return lost
