"""Git LFS objects that are saved with recovery points.

A ref protects a point's commits from `git gc`, but nothing in a repository protects their LFS
objects: `git lfs prune` only considers branches, tags, the stash and worktrees. So the objects that
a point needs beyond its base commit are saved beside its description, below Atoll's home, as long
as the point exists. They are hard links to the owner's objects where the filesystem supports them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from atoll.host import files, git
from atoll.host.intake import comparison
from atoll.host.intake.lfs_objects import LfsStore, copy_objects, find_pointers
from atoll.host.intake.store import IntakeRepository, open_store
from atoll.host.recovery.recovery_points import PREFIX, Shelf, recovered_tree
from atoll.model.errors import StateError
from atoll.model.lfs import Pointer
from atoll.model.state import RecoveryPoint

_WHAT = "the Git LFS objects of the recovery point"


def keep(shelf: Shelf, store: IntakeRepository, point: str, commit: str, *, base: str) -> None:
    """Saves the objects that `commit` needs beyond `base` and that the owner has. They are complete
    when this returns. Raises DriverError if a git fails or the disk is full.
    """
    source = LfsStore.of(shelf.repository, store.settings.lfs_storage)
    if not source.objects.is_dir():
        return
    try:
        found = find_pointers(store, [commit], known=[base])
    except StateError:
        # More than an import allows: the capsule's files are saved instead.
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
    """Restores objects that a point needs to the owner's store, and saves those that an earlier
    version did not. Returns the paths of missing ones. Raises DriverError if a git fails or the
    disk is full.
    """
    kept = [LfsStore(place / "objects") for place in shelf.all_objects_of(point.id)]
    with open_store(shelf.repository, scratch=scratch) as store:
        target = LfsStore.of(shelf.repository, store.settings.lfs_storage)
        try:
            own = find_pointers(store, [point.commit], known=[point.base_commit])
            # Files of the base do not belong to the point, but are restored with it.
            tree = comparison.tree_of(store, recovered_tree(point))
            given = find_pointers(store, [tree], known=())
        except StateError:
            # Too many to list: copy all of them.
            own, given = dict.fromkeys(p for source in kept for p in source.all()), {}
        missing = copy_objects(kept, target, (given | own).items())
        _add(shelf, point.id, target, own)
    return missing


def sweep(shelf: Shelf, *, is_busy: Callable[[str], bool], dry_run: bool) -> list[Path]:
    """Removes the objects of points that do not exist, because a removal or drop was killed or the
    ref was deleted. `is_busy` reports whether a capsule of that name exists or is being removed:
    its point may be about to appear.
    """
    found = [(place, f"{place.parent.name}/{place.stem}") for place in shelf.all_objects()]
    found = [(place, point) for place, point in found if not is_busy(place.parent.name)]
    # Checked afterwards: a removal that has ended in the meantime has created its ref.
    known = {ref for ref, _ in git.refs_below(PREFIX, cwd=shelf.repository)} if found else set()
    lost = [place for place, point in found if PREFIX + point not in known]
    for place in lost if not dry_run else ():
        files.remove_tree(place, within=shelf.notes)
    return lost
