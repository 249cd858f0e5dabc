"""The copy-on-write views of package stores, as mounts of a capsule's view.

Each is an overlay: below lies the owner's store, then a mask that hides what is private in it,
then what earlier layers of the capsule changed; the changes of now go to `stores/NAME` in the
capsule's upper layer. So they are part of its snapshots, forks and rollbacks, and count towards
its disk limit. Where no overlay can be mounted, `stores/NAME` itself is shown: a private store.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from atoll.drivers.layers.pool import Pool
from atoll.drivers.layers.workbench import ROOTLESS
from atoll.host import files
from atoll.model.plan import View

STORES = "stores"
_WORK = "store-work"
_MASKS = "store-masks"
_PRIVILEGED = "redirect_dir=nofollow,index=off,metacopy=off,volatile"
"""Without redirects, which could not be merged when layers are flattened."""


def place_of(state: str, name: str) -> str:
    """Where a view has a capsule's copy of a store."""
    return f"{state}/{STORES}/{name}"


def is_unchanged(entry: Path) -> bool:
    """Whether an entry of an upper layer holds stores, and nothing was written to any."""
    return entry.name == STORES and not any(any(store.iterdir()) for store in entry.iterdir())


def lay(view: View, pool: Pool) -> View:
    """A view with the mounts of its stores; makes the directories that they need.

    The view's lock must be held.
    """
    at = str(pool.state)
    number = next((n for n, mount in enumerate(view.mounts) if mount["at"] == at), None)
    if number is None or not view.stores:
        return view
    state = view.mounts[number]
    tree = Path(view.pool, str(state["upper"] if "overlay" in state else state["bind"]))
    lowers = state.get("overlay")
    layers = [str(layer) for layer in lowers] if isinstance(lowers, list) else []
    made = [
        mount
        for store in view.stores
        if (mount := _mount(view, pool, tree, layers, store)) is not None
    ]
    mounts = (*view.mounts[: number + 1], *made, *view.mounts[number + 1 :])
    return view._replace(mounts=mounts, stores=())


def _mount(
    view: View, pool: Pool, tree: Path, layers: Sequence[str], store: dict[str, object]
) -> dict[str, object] | None:
    """One store, or None where there is nothing below the capsule's own."""
    name, source = str(store["name"]), str(store["source"])
    upper = tree / STORES / name
    below = [f"{layer}/{STORES}/{name}" for layer in layers]
    below = [layer for layer in below if Path(view.pool, layer).is_dir()]
    if not source:
        # Layers of the capsule alone are shown by the overlay of its state.
        return None
    _make_directory(upper)
    work = _beside(tree, _WORK) / name
    # A volatile overlay leaves a mark that keeps it from being mounted again.
    files.remove_tree(work, within=pool.root)
    _make_directory(work)
    mask = _beside(tree, _MASKS) / name
    files.remove_tree(mask, within=pool.root)
    if _hide(mask, source, store["hidden"]):
        below.insert(0, os.path.relpath(mask, view.pool))
    return {
        "store": source,
        "overlay": below,
        "upper": os.path.relpath(upper, view.pool),
        "work": os.path.relpath(work, view.pool),
        "options": ROOTLESS.options if view.user else _PRIVILEGED,
        "at": place_of(str(pool.state), name),
    }


def _beside(tree: Path, name: str) -> Path:
    """A directory on the same filesystem; a Btrfs subvolume counts as one of its own."""
    if tree.stat().st_dev == tree.parent.stat().st_dev:
        return tree.parent / name
    return tree / name


def _make_directory(place: Path) -> None:
    place.parent.mkdir(mode=0o755, exist_ok=True)
    place.mkdir(mode=0o755, exist_ok=True)


def _hide(mask: Path, source: str, patterns: object) -> bool:
    """Makes a layer of whiteouts for what is private in the store; False if there is nothing."""
    if not isinstance(patterns, list | tuple):
        return False
    found = {path for pattern in patterns for path in glob.glob(pattern, root_dir=source)}
    # What has no wildcard is hidden also when it appears later.
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
    """The first directory on the way to `path` that is not in the store; else `path` itself.

    Hidden instead of what may appear in it, it leaves no empty directory to be seen.
    """
    parents = [str(parent) for parent in Path(path).parents][-2::-1]
    missing = (parent for parent in parents if not os.path.isdir(os.path.join(source, parent)))
    return next(missing, path)
