"""Workspaces that are directories of their own: for hosts on which no overlay can be mounted.

`copy` works anywhere and costs what the project is large; `reflink` shares the data of files that
nobody has changed; `btrfs` makes and keeps whole workspaces by snapshots of a subvolume.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from atoll.drivers.contracts import Sealed
from atoll.drivers.layers import probes, volumes
from atoll.drivers.layers.pool import WORKSPACE, Layer, Pool
from atoll.drivers.workspace.layered import LayeredWorkspace
from atoll.host import files, kernel, overlays
from atoll.host.tree_copy import copy_tree
from atoll.model.plan import WorkspacePlan

_TRUST_LESS = "[core]\n\tcheckStat = minimal\n\ttrustctime = false\n"
"""A copy has other inodes and other times of inode change than the index of its layer tells."""


class CopyWorkspace(LayeredWorkspace):
    name = "copy"

    def probe(self, home: Path) -> tuple[str | None, str]:
        del home
        # The view needs a mount namespace in any case.
        flags = kernel.CLONE_NEWNS | (kernel.CLONE_NEWUSER if os.geteuid() != 0 else 0)
        said = kernel.can_unshare(flags)
        if said is not None:
            return None, f"no private mount namespace: {said}"
        return "copy", "files can be copied anywhere"

    def prepare(self, plan: WorkspacePlan) -> None:
        pool = Pool(plan.pool)
        place = pool.layers / plan.upper
        if place.exists():
            return
        # A collection takes what is half built for a dead builder's.
        with pool.turn(shared=True), pool.building() as building:
            self._materialise(pool, plan.layers, building)
            self._trust_less(building / "tree")
            os.rename(building, place)

    @staticmethod
    def _trust_less(tree: Path) -> None:
        """In a copy of somebody's capsule: neither read nor written through a link."""
        path = f"{WORKSPACE}/.git/config"
        said = files.read_beneath(tree, path, limit_bytes=1 << 24)
        if said is not None and _TRUST_LESS.encode() not in said:
            files.write_beneath(tree, path, _TRUST_LESS.encode(), append=True)

    def _materialise(self, pool: Pool, layers: tuple[str, ...], building: Path) -> Sequence[str]:
        """Returns the paths that are not as they were, if somebody wrote there meanwhile."""
        if len(layers) == 1:
            # A moment: it is whole by itself, and may hold what its owner must not read.
            return copy_tree(pool.tree(layers[0]), building / "tree").differences
        overlays.compose([pool.tree(layer) for layer in layers], building / "tree", whiteouts=False)
        return ()

    def _state(self, plan: WorkspacePlan) -> dict[str, object]:
        pool = Pool(plan.pool)
        return {"bind": str(pool.tree(plan.upper)), "at": str(pool.state)}

    def seal(self, plan: WorkspacePlan, *, busy: bool) -> Sealed:
        del busy
        pool = Pool(plan.pool)
        with pool.building() as place:
            inexact = self._materialise(pool, (plan.upper,), place)
            layer = pool.freeze_moment(place)
        return Sealed(layers=(layer.id,), plan=plan, inexact=tuple(inexact))

    def place(self, plan: WorkspacePlan) -> Path | None:
        return Pool(plan.pool).tree(plan.upper) / WORKSPACE

    def _set_aside(self, plan: WorkspacePlan, aside: Path) -> None:
        """A copy, not the tree itself: no set-id bit, device, fifo or socket comes out."""
        files.make_private_directory(aside)
        source = Pool(plan.pool).tree(plan.upper) / WORKSPACE
        copy_tree(source, aside / "workspace", as_files=True)


class ReflinkWorkspace(CopyWorkspace):
    name = "reflink"

    def probe(self, home: Path) -> tuple[str | None, str]:
        way, reason = super().probe(home)
        return (way, reason) if way is None else probes.find_reflink(home)


class BtrfsWorkspace(CopyWorkspace):
    name = "btrfs"

    def probe(self, home: Path) -> tuple[str | None, str]:
        way, reason = super().probe(home)
        return (way, reason) if way is None else probes.find_btrfs(home)

    def _materialise(self, pool: Pool, layers: tuple[str, ...], building: Path) -> Sequence[str]:
        """A snapshot, of a subvolume that is composed once for each stack of layers."""
        source = layers[0]
        if len(layers) > 1 or not volumes.is_volume(pool.tree(source)):
            source = self._compose(pool, layers).id
        os.rmdir(building / "tree")
        volumes.snapshot(pool.tree(source), building / "tree")
        return ()

    def _compose(self, pool: Pool, layers: tuple[str, ...]) -> Layer:
        key = hashlib.blake2b(" ".join(layers).encode(), digest_size=8).hexdigest()
        found = pool.find(f"b{key}")
        if found is not None:
            return found
        with pool.building() as place:
            os.rmdir(place / "tree")
            volumes.create(place / "tree")
            super()._materialise(pool, layers, place)
            # Made of layers that have digests of their own.
            layer = Layer(id=f"b{key}", kind="composed", below=layers, about="all of these as one")
            return pool.freeze(place, layer, digests={})
