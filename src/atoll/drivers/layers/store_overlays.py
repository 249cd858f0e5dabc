"""Copy-on-write mounts of package stores in a capsule's view.

Each is an overlay of the owner's store, a mask that hides private files, and the changes in earlier
layers of the capsule; new changes go to `stores/NAME` in the capsule's upper layer. So they are
part of its snapshots, forks and rollbacks, and count towards its disk limit. Where no overlay can
be mounted, `stores/NAME` itself is mounted: a private store.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from atoll.drivers.layers.build_view import ROOTLESS
from atoll.drivers.layers.pool import Pool
from atoll.host import files
from atoll.model.enclosure import Bind, SharedStore, StoreOverlay, View

STORES = "stores"
_WORK = "store-work"
_MASKS = "store-masks"
_PRIVILEGED = "redirect_dir=nofollow,index=off,metacopy=off,volatile"
"""Without redirects, which flattening layers does not support."""


def place_of(state: str, name: str) -> str:
    """The path of a capsule's copy of a store in a view."""
    return f"{state}/{STORES}/{name}"


def is_unchanged(entry: Path) -> bool:
    """Whether an entry of an upper layer is the directory of stores, without any change."""
    return entry.name == STORES and not any(any(store.iterdir()) for store in entry.iterdir())


def add_store_mounts(view: View, pool: Pool) -> View:
    """Returns the view with the mounts of its stores; creates the directories for them.

    The caller must hold the view's lock.
    """
    at = str(pool.state)
    number = next((n for n, mount in enumerate(view.mounts) if mount.at == at), None)
    if number is None or not view.stores:
        return view
    state = view.mounts[number]
    tree = Path(view.pool, state.source if isinstance(state, Bind) else state.upper)
    layers = () if isinstance(state, Bind) else state.lowers
    made = [
        mount
        for store in view.stores
        if (mount := _mount(view, pool, tree, layers, store)) is not None
    ]
    mounts = (*view.mounts[: number + 1], *made, *view.mounts[number + 1 :])
    return view._replace(mounts=mounts, stores=())


def _mount(
    view: View, pool: Pool, tree: Path, layers: Sequence[str], store: SharedStore
) -> StoreOverlay | None:
    """One mount, or None where the capsule's own layer is the only one."""
    name, source = store.name, store.source
    upper = tree / STORES / name
    below = [f"{layer}/{STORES}/{name}" for layer in layers]
    below = [layer for layer in below if Path(view.pool, layer).is_dir()]
    if not source:
        # Layers of the capsule itself are mounted with its state.
        return None
    _make_directory(upper)
    work = _beside(tree, _WORK) / name
    # A volatile overlay leaves a mark that prevents it from being mounted again.
    files.remove_tree(work, within=pool.root)
    _make_directory(work)
    mask = _beside(tree, _MASKS) / name
    files.remove_tree(mask, within=pool.root)
    if _hide(mask, source, store.hidden):
        below.insert(0, os.path.relpath(mask, view.pool))
    return StoreOverlay(
        source=source,
        lowers=tuple(below),
        upper=os.path.relpath(upper, view.pool),
        work=os.path.relpath(work, view.pool),
        options=ROOTLESS.options if view.user else _PRIVILEGED,
        at=place_of(str(pool.state), name),
    )


def _beside(tree: Path, name: str) -> Path:
    """A directory on the same filesystem; a Btrfs subvolume counts as a filesystem."""
    if tree.stat().st_dev == tree.parent.stat().st_dev:
        return tree.parent / name
    return tree / name


def _make_directory(place: Path) -> None:
    place.parent.mkdir(mode=0o755, exist_ok=True)
    place.mkdir(mode=0o755, exist_ok=True)


def _hide(mask: Path, source: str, patterns: Sequence[str]) -> bool:
    """Creates a layer of whiteouts for private files of the store; False if there are none."""
    found = {path for pattern in patterns for path in glob.glob(pattern, root_dir=source)}
    # Paths without a wildcard are hidden even if they are created later.
    found |= {_topmost_missing(source, path) for path in patterns if not glob.has_magic(path)}
    for path in found:
        if not found.isdisjoint(map(str, Path(path).parents)):
            continue
        _make_directory(mask)
        place = mask / path
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        os.mknod(place, stat.S_IFCHR, os.makedev(0, 0))
    return bool(found)


def _topmost_missing(source: str, path: str) -> str:
    """The first missing directory on the way to `path`, or `path` itself.

    Hiding that directory instead leaves no empty directory visible.
    """
    parents = [str(parent) for parent in Path(path).parents][-2::-1]
    missing = (parent for parent in parents if not os.path.isdir(os.path.join(source, parent)))
    return next(missing, path)
